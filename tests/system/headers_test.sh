#!/bin/bash
# headers_test.sh CXX: each public header compiles alone.
set -euo pipefail

include=$(cd "$(dirname "$0")/../../include" && pwd)
read -ra flags <<<"$(pkg-config --cflags absl_statusor)"
while read -r header; do
  echo "#include <$header>" | "$1" -std=c++20 -x c++ -O0 -fsyntax-only -I "$include" "${flags[@]}" - ||
    { echo "headers_test: $header does not compile alone" >&2; exit 1; }
done < <(cd "$include" && find gradrail -name '*.h')
