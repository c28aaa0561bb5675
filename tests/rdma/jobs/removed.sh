# Removes the device during a run: its network device is unbound from its driver, which also removes rxe0. `rdma link
# delete` is not used: the kernel keeps the device until its last user ends. All tasks run in one guest, over 127.0.0.1,
# which TCP can still use. The run must reach the hash of an undisturbed run.
. "$LAB/jobs/steps.sh"
RUN_SECONDS=${RUN_SECONDS:-120}
# With this rate the model does not converge, so that a step that is lost or applied twice changes the hash.
gradrail=(timeout "$RUN_SECONDS" "$BUILD/bin/gradrail" train --ps_hosts 127.0.0.1:2222 --worker_hosts 127.0.0.1:2223
          --model linear --learning_rate 0.0001 --epochs 60 --log_every 20 --mode sync)

# pair NAME FLAG…: starts a ps and a worker. Their output is in $OUT/NAME.ps and $OUT/NAME.worker.
pair() {
  local name=$1
  shift
  "${gradrail[@]}" --job_name ps --task_index 0 "$@" > "$OUT/$name.ps" 2>&1 &
  ps=$!
  "${gradrail[@]}" --job_name worker --task_index 0 "$@" > "$OUT/$name.worker" 2>&1 &
  worker=$!
}

finish() {
  wait $worker || fail "$1.worker" "exit status $?: $(tail -1 "$OUT/$1.worker")"
  wait $ps || fail "$1.ps" "exit status $?: $(tail -1 "$OUT/$1.ps")"
}

hash_of() { sed -n 's/^Parameter-Hash: //p' "$OUT/$1.worker"; }

pair reference --transport tcp --no-fallback
finish reference

card=$(basename "$(readlink -f "/sys/class/net/$NETDEV/device")")
driver=/sys/class/net/$NETDEV/device/driver
driver=$(readlink -f "$driver")
pair run --transport "$TRANSPORT,tcp"
until_true 60 grep -qs '^Step:' "$OUT/run.worker" || fail start "no step within 60 s: $(tail -1 "$OUT/run.worker")"
echo "$card" > "$driver/unbind" & # ends after the last use of the device
remover=$!
finish run

moved=$(grep -h "continues over tcp" "$OUT/run.worker" | head -1)
before=$(sed -n "s/^Bytes: $TRANSPORT .*rxe0.*: \([0-9]*\) pushed.*/\1/p" "$OUT/run.worker")
if [ -n "$moved" ]; then pass moved "${moved: -120}"; else fail moved "the worker did not log \"continues over tcp\""; fi
if [ "${before:-0}" -gt 0 ]; then pass bytes "$before B over $TRANSPORT before"; else fail bytes "none over $TRANSPORT"; fi
if [ -n "$(hash_of run)" ] && [ "$(hash_of run)" = "$(hash_of reference)" ]; then
  pass hash "equal to that of the undisturbed run"
else
  fail hash "$(hash_of run), undisturbed $(hash_of reference)"
fi

# The next suite needs the device.
if until_true 30 eval "! kill -0 $remover 2>/dev/null"; then
  echo "$card" > "$driver/bind"
  until_true 10 test -e "/sys/class/net/$NETDEV"
  ip addr add "$MY_ADDRESS/24" dev "$NETDEV"
  ip link set "$NETDEV" mtu 4200 up
  rdma link add rxe0 type rxe netdev "$NETDEV"
  until_true 10 grep -qs ACTIVE /sys/class/infiniband/rxe0/ports/1/state || fail restored "rxe0 is not active again"
else
  fail removed "the kernel waits for a user of the device after all have ended"
fi
exit $failed
