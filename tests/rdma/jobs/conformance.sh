# The transport suite over $TRANSPORT, half of it in each guest. Tests with threads as peers run in one process; those with
# processes each in their own, as ctest runs them: RDMA libraries that were used before a fork do not work after it.
# Opening them takes seconds under emulation, so only the tests that need processes do by default; FULL=1: all of them.
export GRADRAIL_TEST_HOST=$MY_ADDRESS # a device hears on the address of its network device, not on 127.0.0.1
program=$BUILD/tests/conformance_test
WITH_THREADS_SECONDS=${FULL:+600}
WITH_THREADS_SECONDS=${WITH_THREADS_SECONDS:-100}
ONE_SECONDS=45 # two of the suite's own patience: what hangs costs itself, not those after it
status=0

GTEST_TOTAL_SHARDS=$RANKS GTEST_SHARD_INDEX=$ROLE \
  timeout $WITH_THREADS_SECONDS "$program" --gtest_filter="*/${TRANSPORT}_threads" || status=$?

processes="*/ProcessConformance.*/${TRANSPORT}_processes:*.connects_and_accepts/${TRANSPORT}_processes"
[ -z "$FULL" ] || processes="*/${TRANSPORT}_processes"
number=0
while read -r name; do
  number=$((number + 1))
  [ $((number % RANKS)) = "$ROLE" ] || continue
  timeout $ONE_SECONDS "$program" --gtest_filter="$name" < /dev/null || status=$?
done < <("$program" --gtest_list_tests --gtest_filter="$processes" |
  sed -n 's/  *#.*//; /^[^ ]/{s/\.$//;h}; /^  /{G; s/^ *\(.*\)\n\(.*\)/\2.\1/p}')
exit $status
