# Steps of a job: each prints one line that results.py counts. The log of a step is $OUT/<step>.<role>.
pass() { echo "PASS $1: $2"; }
fail() { echo "FAIL $1: $2"; failed=1; }
skip() { echo "SKIP $1: $2"; }
failed=0
exec {never}<> /run/never # a pipe without a writer

# until_true SECONDS COMMAND…: whether the command came true in time.
until_true() {
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    ((SECONDS < end)) || return 1
    read -rt 0.05 -u "$never" || true # a sleep without a process: processes are dear under emulation
  done
}

# meet NAME: both guests wait for each other, once per name.
meet() {
  : > "$OUT/meet.$1.$ROLE"
  until_true "${2:-60}" test -e "$OUT/meet.$1.$((1 - ROLE))" || { fail "$1" "the other guest did not come"; return 1; }
}
