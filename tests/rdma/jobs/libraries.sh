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
  until_true 20 listening "$(printf %04X "$port")" || echo "guest 1: nobody listens on $port for $name"
  meet "$name.ready" || return
  until_true $STEP_SECONDS test -e "$OUT/$name.done"
  until_true 2 eval "! kill -0 $! 2>/dev/null" || kill $! 2>/dev/null
  wait $!
}

# step NAME PORT PROOF SERVER CLIENT: PROOF is what the client's output must hold, PORT what the server listens on (TCP).
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
# A timeout below 17 calls a busy host a dead one; 7 retries.
step write_with_immediate 18999 "^written=" "$writer serve" "$writer write $PEER_ADDRESS 65536 2 18 7"
rxm="fi_pingpong -p verbs;ofi_rxm -e rdm -I 20 -S 65536"
step ofi_rxm 47592 ^64k "${rxm//;/\\;}" "${rxm//;/\\;} $PEER_ADDRESS"
# rc_verbs alone has nothing to be wired up over ("no auxiliary transport"); rc brings ud along.
ucx="env UCX_TLS=rc ucx_perftest -t ucp_put_bw -s 65536 -n 20 -w 2"
step ucx_rc_put 13337 ^Final "$ucx" "$ucx $PEER_ADDRESS"
# 12 and 3: a dead peer is noticed in a fraction of a second, which is what a cut is about.
step cut_cable 18999 "completion error status=12" "$writer serve" \
  "(sleep 1.5; cable cut; sleep 1; cable restore) & $writer write $PEER_ADDRESS 65536 8 12 3"
exit $failed
