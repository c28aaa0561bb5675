# Runs the transport suite over $TRANSPORT, half of it in each guest. Tests with threads as peers run in one process.
# Each test with processes as peers has its own process, as under ctest. An RDMA library that was used before a fork
# does not work after it. Opening a library takes seconds under emulation. By default only the tests that need processes
# use them, and tests with much data or many connections are left out. FULL=1 runs all tests.
export GRADRAIL_TEST_HOST=$MY_ADDRESS # a device listens on the address of its network device, not on 127.0.0.1
program=$BUILD/tests/conformance_test
[ -z "$FULL" ] || export GRADRAIL_PATIENCE=4.5 # 256 MiB over ud, which copies the data
WITH_THREADS_SECONDS=${FULL:+900}
WITH_THREADS_SECONDS=${WITH_THREADS_SECONDS:-100}
ONE_SECONDS=${FULL:+600} # 20,000 round trips or 256 MiB take minutes
ONE_SECONDS=${ONE_SECONDS:-45} # twice the timeout in the suite: a test that hangs does not affect the next tests
status=0
worst() { [ $status = 0 ] && status=$1; } # the first status counts: a later failure must not hide a time limit
LONG="*_of_every_size_*:*_round_trips*:*.many_connections_*:*.connection_storms_*:*.close_with_much_under_way_*:*_large_put*"

threads="*/${TRANSPORT}_threads"
processes="*/ProcessConformance.*/${TRANSPORT}_processes:*.connects_and_accepts/${TRANSPORT}_processes:-$LONG"
[ -z "$FULL" ] && threads="$threads:-$LONG" || processes="*/${TRANSPORT}_processes"

GTEST_TOTAL_SHARDS=$RANKS GTEST_SHARD_INDEX=$ROLE \
  timeout $WITH_THREADS_SECONDS "$program" --gtest_filter="$threads" || worst $?

number=0
while read -r name; do
  number=$((number + 1))
  [ $((number % RANKS)) = "$ROLE" ] || continue
  timeout $ONE_SECONDS "$program" --gtest_filter="$name" < /dev/null || worst $?
done < <("$program" --gtest_list_tests --gtest_filter="$processes" |
  sed -n 's/  *#.*//; /^[^ ]/{s/\.$//;h}; /^  /{G; s/^ *\(.*\)\n\(.*\)/\2.\1/p}')
exit $status
