# Runs training with the ps in guest 1 and two workers in guest 0, so that all gradients cross the cable.
#   train NAME FLAG…         one sync run; its output is in $OUT/NAME.*, its hash in $OUT/NAME.hash
. "$LAB/jobs/steps.sh"
gradrail=$BUILD/bin/gradrail
RUN_SECONDS=$((240 * SLOWER))  # a step takes 0.2 to 1.2 s in a guest, by the machine
EPOCHS=${EPOCHS:-1} BATCH=${BATCH:-100}

# A guest on a busy host pauses for seconds. A worker that is declared lost misses a step, which changes the hash.
task() {
  local name=$1 log=$2
  shift 2
  timeout $RUN_SECONDS "$gradrail" train --ps_hosts 10.7.0.2:2222 --worker_hosts 10.7.0.1:2223,10.7.0.1:2224 \
    --insecure --heartbeat-timeout 30 --data_dir /out/mnist --mode sync --epochs "$EPOCHS" --batch_size "$BATCH" --log_every 2 "$@" > "$OUT/$name.$log" 2>&1
}

# Prints the packets that the device has sent and received, and the counters of the cable.
counted() {
  cat /sys/class/infiniband/rxe0/ports/1/hw_counters/{sent,rcvd}_pkts
  cable bytes
}

# Prints the error of a failed task. After a crash, the error precedes a backtrace.
last_words() {
  grep -hE "^gradrail: |[Aa]ssertion|terminate called|Sanitizer|what\(\):" "$@" | tail -1 | grep . || tail -qn 1 "$@" | tail -1
}

train() {
  local name=$1
  shift
  meet "$name.start" || return
  if [ "$ROLE" = 1 ]; then
    task "$name" ps --job_name ps --task_index 0 "$@"
    local status=$?
    [ $status = 0 ] || fail "$name.ps" "exit status $status: $(last_words "$OUT/$name.ps")"
  else
    counted > "$OUT/$name.before"
    task "$name" worker1 --job_name worker --task_index 1 "$@" &
    task "$name" worker0 --job_name worker --task_index 0 "$@"
    local status=$?
    wait $! || status=$?
    counted > "$OUT/$name.after"
    sed -n 's/^Parameter-Hash: //p' "$OUT/$name.worker0" > "$OUT/$name.hash"
    [ $status = 0 ] || fail "$name" "exit status $status: $(last_words "$OUT/$name".worker[01])"
  fi
  meet "$name.end" || return
}

# All other runs with the same EPOCHS and BATCH must reach this hash. It is computed once for all suites of a boot. A
# suite with towers has its own BATCH.
REFERENCE=/out/reference.$EPOCHS.$BATCH.hash
reference() {
  [ -s "$REFERENCE" ] && return
  train reference --transport tcp --no-fallback "$@"
  [ "$ROLE" = 0 ] && cp "$OUT/reference.hash" "$REFERENCE"
  meet reference.known
}

# over NAME TRANSPORT FLAG…: runs training over TRANSPORT, and checks its hash, its paths and its counters.
over() {
  local name=$1 transport=$2
  shift 2
  train "$name" --transport "$transport" --no-fallback --path_timeout $((10 * SLOWER)) "$@"
  [ "$ROLE" = 0 ] && [ -s "$OUT/$name.hash" ] || return
  same_hash "$name"
  took_path "$name" "$transport"
  moved_by_rdma "$name"
}

same_hash() {
  local hash wanted
  read -r hash < "$OUT/$1.hash"
  read -r wanted < "$REFERENCE"
  if [ "$hash" = "$wanted" ]; then pass "$1.hash" "equal over tcp"; else fail "$1.hash" "$hash, over tcp $wanted"; fi
}

took_path() {
  local paths
  paths=$(sed -n 's/^Path: //p' "$OUT/$1".worker[01])
  if [ "$(grep -c "$2" <<< "$paths")" = 2 ]; then pass "$1.path" "$(head -1 <<< "$paths")"; else fail "$1.path" "${paths//$'\n'/; }"; fi
}

# Compares the bytes that the workers report with the RoCE bytes of the cable and with the packets of rxe0. A packet has
# at most 4096 bytes.
moved_by_rdma() {
  local reported=0 pushed returned before after roce packets
  while read -r pushed returned; do reported=$((reported + pushed + returned)); done < <(
    sed -n 's/^Exchange: .* \([0-9]*\) bytes pushed, \([0-9]*\) bytes returned.*/\1 \2/p' "$OUT/$1".worker[01])
  mapfile -t before < "$OUT/$1.before"
  mapfile -t after < "$OUT/$1.after"
  packets=$((after[0] + after[1] - before[0] - before[1]))
  roce=$(($(cut -d' ' -f2 <<< "${after[2]}") - $(cut -d' ' -f2 <<< "${before[2]}")))
  local reported_packets=$((reported / 4096)) said="reported $reported B, cable $roce B RoCE, rxe0 $packets packets"
  if [ $reported -gt 0 ] && [ $roce -ge $reported ] && [ $packets -ge $reported_packets ]; then pass "$1.bytes" "$said"; else fail "$1.bytes" "$said"; fi
}

# disturbed NAME TRANSPORT SECONDS WHAT…: runs `cable WHAT` in the third step, and restores the cable after SECONDS. The
# run must reach the hash of an undisturbed run: no gradient is lost or applied twice.
disturbed() {
  local name=$1 transport=$2 seconds=$3
  shift 3
  if [ "$ROLE" = 0 ]; then
    (until_true $RUN_SECONDS grep -qs '^Step:' "$OUT/$name.worker0"
     cable "$@" && sleep "$seconds" && cable restore) > "$OUT/$name.fault" 2>&1 &
  fi
  # 2 s, because the dropped packets return after 6 s.
  train "$name" --transport "$transport,tcp" --failback-secs 1 --path_timeout 2
  [ "$ROLE" = 0 ] && [ -s "$OUT/$name.hash" ] || return
  same_hash "$name"
}

# moves NAME TRANSPORT: only RoCE is dropped for 6 s. The run continues over tcp, and returns when RoCE works again. A
# worker without an exchange in that time does not move. Each worker that moved must return.
moves() {
  disturbed "$1" "$2" 6 drop-udp 4791
  [ "$ROLE" = 0 ] || return
  local moved back line
  moved=$(cat "$OUT/$1".worker[01] | grep -c "continues over tcp")
  back=$(cat "$OUT/$1".worker[01] | grep -c "back on $2")
  line=$(grep -h "continues over tcp" "$OUT/$1".worker[01] | head -1)
  if [ "$moved" -ge 1 ]; then pass "$1.moved" "$moved: ${line:0:160}"; else fail "$1.moved" "no worker logged \"continues over tcp\""; fi
  if [ "$moved" = "$back" ]; then pass "$1.back" "$back"; else fail "$1.back" "$moved moved, $back logged \"back on $2\""; fi
}

# lossy NAME TRANSPORT: the link loses 1 % of the frames in both directions, and has 1 ms of delay. The result must be
# correct. The run is slow: a loss can cost a timeout of the queue pair, which is seconds with rdma_cm. It therefore has
# few steps (BATCH).
lossy() {
  tc qdisc replace dev "$NETDEV" root netem loss 1% delay 1ms || fail "$1.netem" "tc refused"
  over "$1" "$2"
  tc qdisc del dev "$NETDEV" root
}
