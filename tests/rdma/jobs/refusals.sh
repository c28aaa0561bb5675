# Tests runs in which RDMA is unusable from the start. A worker uses tcp and logs the reason. If fallback is forbidden,
# it fails with the reason. All tasks run in one guest: the ps as root, the workers as another user. Shared memory
# refuses that user, and the user has a limit of locked memory (root has none).
. "$LAB/jobs/steps.sh"
RUN_SECONDS=60
UNLIMITED=unlimited
workers=("$MY_ADDRESS:2223" "$MY_ADDRESS:2224" "$MY_ADDRESS:2225")
# Only its owner may be able to read the folder of the build, so the user keeps one capability.
other_user=(setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=+dac_read_search
            --ambient-caps=+dac_read_search --bounding-set=-ipc_lock)

listening() { grep -q ":08AE 0*:0000 0A" /proc/net/tcp /proc/net/tcp6; } # 2222

# start_ps CASE WORKERS: starts a ps for that number of workers, and waits until it listens. It then has all its devices
# open.
start_ps() {
  local hosts=${workers[*]:0:$2}
  gradrail=("$BUILD/bin/gradrail" train --insecure --ps_hosts "$MY_ADDRESS:2222" --worker_hosts "${hosts// /,}" --model linear --epochs 1)
  started=()
  timeout $RUN_SECONDS "${gradrail[@]}" --job_name ps --task_index 0 > "$OUT/$1.ps" 2>&1 &
  ps=$!
  until_true 40 listening || fail "$1.ps" "does not listen: $(tail -1 "$OUT/$1.ps")"
}

# finish CASE: waits until all workers and the ps have ended. The ps does not wait for workers that were refused.
finish() {
  wait "${started[@]}"
  until_true 15 eval "! kill -0 $ps 2>/dev/null" || kill $ps
  wait $ps
  case $? in 0 | 143) ;; *) fail "$1.ps" "exit status $?: $(tail -1 "$OUT/$1.ps")" ;; esac
}

# worker CASE INDEX LIMIT FLAG…: runs a worker. Its output is in $OUT/CASE.INDEX, its exit status in
# $OUT/CASE.INDEX.status.
worker() {
  local log=$OUT/$1.$2 index=$2 limit=$3
  shift 3
  timeout $RUN_SECONDS prlimit --memlock="$limit:$limit" "${other_user[@]}" "${gradrail[@]}" \
    --job_name worker --task_index "$index" "$@" > "$log" 2>&1
  echo $? > "$log.status"
}

# judge CASE INDEX STATUS LINE REASON…: checks the exit status of a worker. Its last line that begins with LINE must
# match each REASON (ERE).
judge() {
  local name=$1.$2 wanted=$3 line reason said status
  line=$(grep -h "^$4" "$OUT/$name" | tail -1)
  status=$(cat "$OUT/$name.status")
  shift 4
  [ "$status" = "$wanted" ] || { fail "$name" "exit status $status, not $wanted: $(tail -1 "$OUT/$name" | cut -c1-300)"; return; }
  for reason in "$@"; do
    said=$(grep -Eo -m1 -- "$reason" <<< "$line") || { fail "$name" "no \"$reason\" in: ${line:0:600}"; return; }
  done
  pass "$name" "${said:0:200}"
}

goes_on() { judge "$1" "$2" 0 "Path: " ": tcp \(shm refused" "${@:3}"; }
ends() { judge "$1" "$2" 4 "gradrail: " "fallback is forbidden" "${@:3}"; }

memlock() {
  local limit="[0-9]+ bytes: [^;]*; the limit on locked memory is 64 KiB[^;]*ulimit -l unlimited.*LimitMEMLOCK.*limits.conf"
  start_ps memlock 3
  worker memlock 0 65536 --transport auto & started+=($!)
  worker memlock 1 65536 --transport ofi --no-fallback & started+=($!)
  worker memlock 2 65536 --transport ucx --no-fallback & started+=($!)
  finish memlock
  goes_on memlock 0 "ucx refused: ucx: [^;]* $limit" "ofi refused: ofi: [^;]* $limit"
  ends memlock 1 "transport ofi refused: ofi: [^;]* $limit"
  ends memlock 2 "transport ucx refused: ucx: [^;]* $limit"
}

# The port goes down after the start of the ps, before the workers start.
port_down() {
  start_ps port 3
  cable pull "$ROLE" > /dev/null
  until_true 10 grep -q DOWN /sys/class/infiniband/rxe0/ports/1/state || fail port "the port of rxe0 stays up"
  worker port 0 $UNLIMITED --transport auto & started+=($!)
  worker port 1 $UNLIMITED --transport ofi --require rdma --no-fallback & started+=($!)
  worker port 2 $UNLIMITED --transport ucx --require rdma --no-fallback & started+=($!)
  finish port
  cable plug "$ROLE" > /dev/null
  until_true 10 grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state || fail port "the port of rxe0 stays down"
  goes_on port 0 "ucx refused: .*rxe0 port 1 is down" "ofi refused: .*rxe0 port 1 is down"
  ends port 1 "transport ofi refused: .*rxe0 port 1 is down"
  ends port 2 "transport ucx refused: .*rxe0 port 1 is down"
}

no_verbs() { ! grep -qs rxe0 /sys/class/infiniband_verbs/*/ibdev; }

# The device is listed when the ps starts, and removed before the workers start. The kernel keeps the objects that the
# ps has open until the ps ends.
removed() {
  local remover
  start_ps removed 3
  rdma link delete rxe0 & remover=$!
  until_true 10 no_verbs || fail removed "rxe0 stays"
  worker removed 0 $UNLIMITED --transport auto & started+=($!)
  worker removed 1 $UNLIMITED --transport ofi --require rdma --no-fallback & started+=($!)
  worker removed 2 $UNLIMITED --transport ucx --require rdma --no-fallback & started+=($!)
  finish removed
  until_true 20 eval "! kill -0 $remover 2>/dev/null" || fail removed "rdma link delete does not end"
  goes_on removed 0 "ucx refused: ucx: .*rxe0 is being removed" "ofi refused: ofi: .*rxe0 is being removed"
  ends removed 1 "transport ofi refused: ofi: .*rxe0 is being removed"
  ends removed 2 "transport ucx refused: ucx: .*rxe0 is being removed"
}

# There is no device, for the ps and for the worker.
absent() {
  [ ! -e /sys/class/infiniband/rxe0 ] || rdma link delete rxe0
  start_ps absent 1
  worker absent 0 $UNLIMITED --transport auto & started+=($!)
  finish absent
  goes_on absent 0 "ucx refused: .*no RDMA device" "ofi refused: .*no RDMA device"
}

for case in $CASES; do $case; done
[ -e /sys/class/infiniband/rxe0 ] || rdma link add rxe0 type rxe netdev "$NETDEV"
exit $failed
