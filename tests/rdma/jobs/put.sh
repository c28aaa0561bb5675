# Compares the cost of puts with the plain libraries over soft-RoCE. Guest 0 measures, guest 1 runs the servers. Ratios
# within one group and size are meaningful here, microseconds are not. PUT_FLAGS holds more flags of compare_put.py.
. "$LAB/jobs/steps.sh"
compare() { python3 -B "$LAB/../../bench/compare_put.py" --build-dir "$BUILD" --bind-host "$MY_ADDRESS" "$@"; }
if [ "$ROLE" = 1 ]; then
  compare --serve
  exit $?
fi
# shellcheck disable=SC2086 # several flags
compare --peer "$PEER_ADDRESS" --groups "$PUT_GROUPS" --json "$OUT/put.jsonl" $PUT_FLAGS | tee "$OUT/put.txt"
status=${PIPESTATUS[0]}
for group in ${PUT_GROUPS//,/ }; do
  rows=$(grep -c "\"group\": \"$group\"" "$OUT/put.jsonl")
  if [ "$rows" -gt 0 ]; then pass "$group" "$rows results"; else fail "$group" "no result"; fi
done
[ "$status" = 0 ] || fail status "$(grep -m1 '^# [a-z_ ]*, \(latency\|bandwidth\) of' "$OUT/put.txt")"
exit $failed
