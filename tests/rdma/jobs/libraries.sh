# Tests the lab with programs of the RDMA libraries and with a program that uses plain verbs. gradrail is not involved.
# Guest 1 runs the servers. Guest 0 runs the clients and reports the results.
. "$LAB/jobs/steps.sh"
writer=$BUILD/tests/verbs_writer
STEP_SECONDS=40

listening() { grep -qi ":$1 00000000:0000 0A\|:$1 0\{32\}:0000 0A" /proc/net/tcp /proc/net/tcp6; }

# The server is killed soon after the client has ended. Some servers would otherwise run until the timeout.
serve() {
  local name=$1 port=$2 server=$3
  timeout $STEP_SECONDS bash -c "exec $server" > "$OUT/$name.1" 2>&1 &
  until_true 20 listening "$(printf %04X "$port")" || echo "guest 1: no listener on $port for $name"
  meet "$name.ready" || return
  until_true $STEP_SECONDS test -e "$OUT/$name.done"
  until_true 2 eval "! kill -0 $! 2>/dev/null" || kill $! 2>/dev/null
  wait $!
}

# step NAME PORT PROOF SERVER CLIENT: the server listens on the TCP port PORT, and the output of the client must contain
# PROOF.
step() {
  local name=$1 port=$2 proof=$3 log=$OUT/$1.0
  if [ "$ROLE" = 1 ]; then serve "$name" "$port" "$4"; return; fi
  meet "$name.ready" || return
  timeout $STEP_SECONDS bash -c "$5" > "$log" 2>&1
  : > "$OUT/$name.done"
  if grep -q "$proof" "$log"; then
    pass "$name" "$(grep "$proof" "$log" | tail -1 | tr -s ' ' | cut -c1-100)"
  else
    fail "$name" "$(tail -1 "$log" | cut -c1-150)"
  fi
}

if [ "$ROLE" = 0 ]; then
  if grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state; then pass device "rxe0 is active"; else fail device "no active rxe0"; fi
fi
step pingpong 18515 "iters in" "ibv_rc_pingpong -d rxe0 -g 1 -n 100" "ibv_rc_pingpong -d rxe0 -g 1 -n 100 $PEER_ADDRESS"
# Timeout 18 and 7 retries: with a timeout below 17, a busy host counts as failed.
step write_with_immediate 18999 "^written=" "$writer serve" "$writer write $PEER_ADDRESS 65536 1 18 7"
rxm="fi_pingpong -p verbs;ofi_rxm -e rdm -I 20 -S 65536"
step ofi_rxm 47592 ^64k "${rxm//;/\\;}" "${rxm//;/\\;} $PEER_ADDRESS"
# rc includes ud, over which it connects. rc_verbs alone fails with "no auxiliary transport".
ucx="env UCX_TLS=rc ucx_perftest -t ucp_put_bw -s 65536 -n 20 -w 2"
step ucx_rc_put 13337 ^Final "$ucx" "$ucx $PEER_ADDRESS"
# fault NAME TCP WHAT: runs `cable WHAT` while the client writes. Timeout 14 (67 ms) and 6 retries tolerate a busy host.
# With 12 and 3, a busy peer looks like a failed peer, so that the test proves nothing. With 7 retries, rxe retries
# forever.
fault() {
  local name=$1 tcp=$2 what=$3 log=$OUT/$1.0
  step "$name" 18999 "status=12 .* after [1-9]" "$writer serve" "(. $LAB/jobs/steps.sh; until_true 20 grep -q ^first $log
    cable $what; sleep 2; cable restore) & $writer write $PEER_ADDRESS 65536 10 14 6; wait"
  [ "$ROLE" = 1 ] && return
  if grep -q "TCP connection is $tcp" "$log"; then pass "$name.tcp" "TCP is $tcp"; else fail "$name.tcp" "TCP is not $tcp"; fi
}
fault roce_dropped alive "drop-udp 4791"
fault cut_cable silent cut
# Unplugs the cable of guest 0: the port of its device goes down and becomes active again.
if [ "$ROLE" = 0 ]; then
  port() { grep -q "$1" /sys/class/infiniband/rxe0/ports/1/state; }
  cable pull 0 > /dev/null
  if until_true 10 port DOWN && cable plug 0 > /dev/null && until_true 10 port ACTIVE; then
    pass pulled_plug "the port went down and became active again"
  else
    fail pulled_plug "the port is $(cat /sys/class/infiniband/rxe0/ports/1/state)"
  fi
fi
exit $failed
