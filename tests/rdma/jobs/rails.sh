# Trains over two RDMA devices in each guest: rxe0, and rxe1 on a cable of its own. With CUT the second cable is cut
# during another run. It continues on the first one, returns, and reaches the hash of an undisturbed run.
. "$LAB/jobs/train.sh"
unset UCX_NET_DEVICES # the flag --rails names the devices
RAILS=10.7.0.2,10.8.0.2

sysctl -qw "net.ipv6.conf.$RAILDEV.accept_dad=0"
ip addr add 10.8.0.$((ROLE + 1))/24 dev "$RAILDEV"
ip link set "$RAILDEV" mtu 4200 up
rdma link add rxe1 type rxe netdev "$RAILDEV" || fail rxe1 "rdma refused"

packets() { echo $(($(cat "/sys/class/infiniband/$1/ports/1/hw_counters/sent_pkts"))); }

reference
before0=$(packets rxe0) before1=$(packets rxe1)
train both --transport "$TRANSPORT" --no-fallback --rails "$RAILS" --path_timeout $((10 * SLOWER))
if [ "$ROLE" = 0 ]; then
  same_hash both
  took_path both "$TRANSPORT.*2 rails (10.7.0.2, 10.8.0.2)"
  sent0=$(($(packets rxe0) - before0)) sent1=$(($(packets rxe1) - before1)) said="rxe0 $sent0, rxe1 $sent1 packets sent"
  # Buckets take the lane with the least to do, so that both have a part. Other connections use rxe0 as well.
  if [ $((8 * sent0)) -gt $sent1 ] && [ $((8 * sent1)) -gt $sent0 ]; then pass both.packets "$said"; else fail both.packets "$said"; fi
fi

cut_during_the_run() {
  if [ "$ROLE" = 0 ]; then
    (until_true $RUN_SECONDS grep -qs '^Step:' "$OUT/cut.worker0"
     cable cut-rail && sleep 8 && cable restore) > "$OUT/cut.fault" 2>&1 &
  fi
  train cut --transport "$TRANSPORT" --rails "$RAILS" --failback-secs 1 --path_timeout 2
  [ "$ROLE" = 0 ] || return
  local what line
  same_hash cut
  for what in "1 of 2 rails (10.7.0.2)" "back on $TRANSPORT"; do
    line=$(grep -hF "$what" "$OUT"/cut.worker[01] | head -1)
    if [ -n "$line" ]; then pass "cut: $what" "${line:0:200}"; else fail "cut: $what" "no worker logged it"; fi
  done
}
[ -z "$CUT" ] || cut_during_the_run

rdma link delete rxe1
ip addr flush dev "$RAILDEV"
ip link set "$RAILDEV" down
exit $failed
