#!/bin/bash
# install_test.sh BUILD CXX CC SANITIZE: installs BUILD. It builds a worker in C++ by CMake and by pkg-config, and one
# in C. Each of these and a Python worker make one exchange with an installed ps task. The example plug-in is built with
# the installed header only, and the installed program trains over it.
set -euo pipefail

build=$1 cxx=$2 cc=$3 sanitize=$4
consumer=$(cd "$(dirname "$0")/install_consumer" && pwd)
root=$(cd "$consumer/../../.." && pwd)
scratch=$(mktemp -d)
processes=()
cleanup() {
  for process in "${processes[@]}"; do kill "$process" 2>/dev/null || true; done
  rm -rf "$scratch"
}
trap cleanup EXIT
fail() { echo "install_test: $*" >&2; exit 1; }

cmake --install "$build" --prefix "$scratch/first" >"$scratch/log" || { cat "$scratch/log"; fail "cmake --install"; }
# The tree is moved after it was installed: a package that remembers its prefix cannot be shipped.
prefix=$scratch/prefix
mv "$scratch/first" "$prefix"
library=$(find "$prefix" -name libgradrail.so)
[[ -n $library ]] || fail "libgradrail.so is not installed"
export PKG_CONFIG_PATH="${library%/*}/pkgconfig" LD_LIBRARY_PATH="${library%/*}"

flags=(-O0)
[[ -z $sanitize ]] || flags+=("-fsanitize=$sanitize")

# Nothing may point back into the source or build tree: the machine that uses the package has neither.
if grep -rIl -e "$build" -e "$root" "$prefix/lib"*/ "$prefix/include"; then
  fail "these files name the build machine's folders"
fi
for file in bin/gradrail bin/gradrail-report share/gradrail/mnist/train-images-idx3-ubyte.gz share/gradrail/launch/kubernetes.yaml \
  share/gradrail/python/gradrail/checkpoint.py share/gradrail/python/gradrail/_crc32c.py \
  share/man/man1/gradrail.1 share/man/man1/gradrail-train.1 share/bash-completion/completions/gradrail; do
  [[ -e $prefix/$file ]] || fail "$file is not installed"
done
diff -r "$root/include/gradrail" "$prefix/include/gradrail" || fail "the installed headers are not those of include/gradrail"
if find "$prefix" -name '*.a' | grep .; then fail "static libraries are installed"; fi

# The library exports the C interface and gradrail's C++ classes. Private parts and other libraries stay hidden.
nm -D --defined-only -C "$library" | cut -d ' ' -f 3- >"$scratch/symbols"
grep -q '^gradrail_join$' "$scratch/symbols" || fail "gradrail_join is not exported"
if grep -vE '^gradrail_[a-z_]+$|^gradrail::' "$scratch/symbols"; then fail "these symbols are exported"; fi
if grep 'Impl' "$scratch/symbols"; then fail "private symbols are exported"; fi
if ldd "$library" | grep -E 'dnnl|not found'; then fail "the library loads these"; fi

cmake -S "$consumer" -B "$scratch/by_cmake" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_CXX_COMPILER="$cxx" \
  -DCMAKE_CXX_FLAGS="${flags[*]}" >"$scratch/log" 2>&1 || { cat "$scratch/log"; fail "find_package(gradrail)"; }
cmake --build "$scratch/by_cmake" || fail "building with CMake"
read -ra described <<<"$(pkg-config --cflags --libs gradrail absl_statusor)"
"$cxx" -std=c++20 "${flags[@]}" "$consumer/worker.cc" "${described[@]}" -o "$scratch/by_pkg_config" ||
  fail "building C++ with pkg-config"
read -ra described <<<"$(pkg-config --cflags --libs gradrail)"
"$cc" -std=c11 "${flags[@]}" "$consumer/worker.c" "${described[@]}" -o "$scratch/worker_c" || fail "building C with pkg-config"

# All headers compile with what is installed, in both orders: headers_test.sh (make test-all) compiles each of them
# alone. A header that declares extern "C" is also one of C11.
mapfile -t headers < <(cd "$prefix/include/gradrail" && find . -name '*.h' | sort)
for order in sort "sort --reverse"; do
  printf '#include <gradrail/%s>\n' "${headers[@]}" | $order |
    "$cxx" -std=c++20 -x c++ -fsyntax-only "${described[0]}" - || fail "the headers do not compile in the order of $order"
done
for header in "${headers[@]}"; do
  grep -q '^extern "C"' "$prefix/include/gradrail/$header" || continue
  echo "#include <gradrail/$header>" | "$cc" -std=c11 -x c -fsyntax-only "${described[0]}" - ||
    fail "$header does not compile alone"
done

# Python is not instrumented: the sanitizer must be loaded before the library. Leaks of the interpreter are not ours.
preload=()
for part in ${sanitize//,/ }; do
  case $part in address) name=libasan.so ;; undefined) name=libubsan.so ;; thread) name=libtsan.so ;; *) fail "-fsanitize=$part" ;; esac
  preload+=("$("$cc" -print-file-name="$name")")
done
python=(python3)
if [[ -n $sanitize ]]; then
  preload+=("$("$cxx" -print-file-name=libstdc++.so)")
  python=(env "LD_PRELOAD=${preload[*]}" "ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0" python3)
fi

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
hosts=(127.0.0.1:"$port" 127.0.0.1:1,127.0.0.1:2,127.0.0.1:3,127.0.0.1:4)
version=$(pkg-config --modversion gradrail)
start() { # start NAME COMMAND...: the process writes to NAME.log
  timeout 120 "${@:2}" >"$scratch/$1.log" 2>&1 &
  processes+=($!) names+=("$1")
}
names=()
start ps "$prefix/bin/gradrail" train --job_name ps --task_index 0 --ps_hosts "${hosts[0]}" --worker_hosts "${hosts[1]}"
start cmake "$scratch/by_cmake/worker_cpp" "${hosts[@]}" 0 "$version"
start pkg_config "$scratch/by_pkg_config" "${hosts[@]}" 1 "$version"
start c "$scratch/worker_c" "${hosts[@]}" 2 "$version"
start python "${python[@]}" "$consumer/worker.py" "$library" "${hosts[@]}" 3 "$version"
status=0
for i in "${!names[@]}"; do
  wait "${processes[i]}" || { echo "install_test: ${names[i]} ended with $?:"; cat "$scratch/${names[i]}.log"; status=1; }
done
((status == 0)) || fail "an exchange of four workers with the installed ps task"
cat "$scratch/cmake.log"

# The folder of the plug-in holds no header of gradrail: gradrail/transport.h is the installed one.
mkdir "$scratch/plugin" "$scratch/plugins"
cp "$root"/worker/examples/plugin/*.[ch] "$scratch/plugin"
"$cc" -std=c11 -pedantic -Wall -Wextra -Werror "${flags[@]}" -fPIC -shared -fvisibility=hidden \
  -I "$prefix/include" "$scratch"/plugin/*.c -o "$scratch/plugins/libgradrail_transport_outside.so" ||
  fail "building the example plug-in with the installed header"
chmod go-w "$scratch/plugins" "$scratch/plugins"/*
timeout 120 "$prefix/bin/gradrail" train --local --workers 2 --model linear --epochs 2 --plugin_dir "$scratch/plugins" \
  --transport outside >"$scratch/train.log" 2>&1 || { cat "$scratch/train.log"; fail "training over the plug-in"; }
grep '^Path: shard 0 at .*: outside' "$scratch/train.log" || { cat "$scratch/train.log"; fail "no path over the plug-in"; }
