# The lab itself, with other people's programs and our own plain verbs: what fails here is not gradrail's fault.
# Guest 1 serves, guest 0 drives and judges.
. "$LAB/jobs/steps.sh"
writer=$BUILD/tests/verbs_writer
STEP_SECONDS=40

listening() { grep -qi ":$1 00000000:0000 0A\|:$1 0\{32\}:0000 0A" /proc/net/tcp /proc/net/tcp6; }

# The client that ended has nothing more to ask; a server that goes on regardless would use up its whole time.
serve() {
  local name=$1 port=$2 server=$3
  timeout $STEP_SECONDS bash -c "exec $server" > "$OUT/$name.1" 2>&1 &
  until_true 20 listening "$(printf %04X "$port")" || echo "guest 1: no listener on $port for $name"
  meet "$name.ready" || return
  until_true $STEP_SECONDS test -e "$OUT/$name.done"
  until_true 2 eval "! kill -0 $! 2>/dev/null" || kill $! 2>/dev/null
  wait $!
}

# step NAME PORT PROOF SERVER CLIENT: PROOF is what the client's output must hold, PORT what the server listens on
# (TCP).
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
# With a timeout below 17 a busy host counts as failed; 7 retries.
step write_with_immediate 18999 "^written=" "$writer serve" "$writer write $PEER_ADDRESS 65536 1 18 7"
rxm="fi_pingpong -p verbs;ofi_rxm -e rdm -I 20 -S 65536"
step ofi_rxm 47592 ^64k "${rxm//;/\\;}" "${rxm//;/\\;} $PEER_ADDRESS"
# rc_verbs alone has nothing to be wired up over ("no auxiliary transport"); rc brings ud along.
ucx="env UCX_TLS=rc ucx_perftest -t ucp_put_bw -s 65536 -n 20 -w 2"
step ucx_rc_put 13337 ^Final "$ucx" "$ucx $PEER_ADDRESS"
# A fault while the writer writes. Timeout 14 (67 ms) and 6 retries tolerate a busy host. With 12 and 3 a busy peer
# looks like a failed one, and the fault proves nothing. 7 retries are not used where an end is wanted: rxe retries
# forever then.
fault() {
  local name=$1 tcp=$2 what=$3 log=$OUT/$1.0
  step "$name" 18999 "status=12 .* after [1-9]" "$writer serve" "(. $LAB/jobs/steps.sh; until_true 20 grep -q ^first $log
    cable $what; sleep 2; cable restore) & $writer write $PEER_ADDRESS 65536 10 14 6; wait"
  [ "$ROLE" = 1 ] && return
  if grep -q "TCP connection is $tcp" "$log"; then pass "$name.tcp" "TCP is $tcp"; else fail "$name.tcp" "TCP is not $tcp"; fi
}
fault roce_dropped alive "drop-udp 4791"
fault cut_cable silent cut
# The plug of our own device: its port goes down and comes back.
if [ "$ROLE" = 0 ]; then
  port() { grep -q "$1" /sys/class/infiniband/rxe0/ports/1/state; }
  cable pull 0 > /dev/null
  if until_true 10 port DOWN && cable plug 0 > /dev/null && until_true 10 port ACTIVE; then
    pass pulled_plug "the port went down and came back"
  else
    fail pulled_plug "the port is $(cat /sys/class/infiniband/rxe0/ports/1/state)"
  fi
fi
exit $failed
