# Functions for the steps of a job. Each step prints one line, which results.py counts. Its log is $OUT/<step>.<role>.
pass() { echo "PASS $1: $2"; }
fail() { echo "FAIL $1: $2"; failed=1; }
skip() { echo "SKIP $1: $2"; }
failed=0
exec {never}<> /run/never # a pipe without a writer

# until_true SECONDS COMMAND…: repeats the command until it succeeds, and fails after SECONDS.
until_true() {
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    ((SECONDS < end)) || return 1
    read -rt 0.05 -u "$never" || true # sleep would start a process, which is slow under emulation
  done
}

# meet NAME [SECONDS]: a barrier of both guests. Each name is used once.
meet() {
  : > "$OUT/meet.$1.$ROLE"
  until_true "${2:-60}" test -e "$OUT/meet.$1.$((1 - ROLE))" ||
    { fail "$1" "timed out waiting for the other guest"; return 1; }
}
