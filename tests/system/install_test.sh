#!/bin/bash
# install_test.sh BUILD COMPILER SANITIZE: installs BUILD and compiles the consumer by CMake and by pkg-config.
set -euo pipefail

build=$1 compiler=$2 sanitize=$3
consumer=$(cd "$(dirname "$0")/install_consumer" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "install_test: $*" >&2; exit 1; }

cmake --install "$build" --prefix "$scratch/first" >"$scratch/log" || { cat "$scratch/log"; fail "cmake --install"; }
# The tree is moved after it was installed: a package that remembers its prefix cannot be shipped.
prefix=$scratch/prefix
mv "$scratch/first" "$prefix"
data=$prefix/share/gradrail/mnist

flags=-O0
[[ -z $sanitize ]] || flags+=" -fsanitize=$sanitize"

cmake -S "$consumer" -B "$scratch/by_cmake" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_CXX_COMPILER="$compiler" \
  -DCMAKE_CXX_FLAGS="$flags" >"$scratch/log" || { cat "$scratch/log"; fail "find_package(gradrail)"; }
cmake --build "$scratch/by_cmake" || fail "building with CMake"
timeout 60 "$scratch/by_cmake/consumer" "$data" || fail "the program that CMake built"

modules=$(dirname "$(find "$prefix" -name gradrail.pc)")
read -ra described <<<"$(PKG_CONFIG_PATH=$modules pkg-config --cflags --libs gradrail)"
# shellcheck disable=SC2086 # flags are words
"$compiler" $flags "$consumer/consumer.cc" "${described[@]}" -o "$scratch/by_pkg_config" || fail "building with pkg-config"
timeout 60 "$scratch/by_pkg_config" "$data" || fail "the program that pkg-config described"

# Every installed header must stand on what is installed; the consumer uses only some of them.
(cd "$prefix/include/gradrail" && find . -name '*.h' | sort | sed 's|^\./\(.*\)|#include "\1"|') >"$scratch/every_header.cc"
"$compiler" -fsyntax-only "$scratch/every_header.cc" "${described[@]}" || fail "an installed header misses something"

# Nothing may point back into the source or build tree: the machine that uses the package has neither.
if grep -rIl -e "$build" -e "$(cd "$consumer/../../.." && pwd)" "$prefix/lib"*/ "$prefix/include"; then
  fail "these files name the build machine's folders"
fi
for file in bin/gradrail share/gradrail/mnist/train-images-idx3-ubyte.gz include/gradrail/transport/context.h \
  share/gradrail/launch/kubernetes.yaml; do
  [[ -e $prefix/$file ]] || fail "$file is not installed"
done
if compgen -G "$prefix/include/gradrail/transport/*/" >/dev/null; then fail "headers of transport implementations are installed"; fi
