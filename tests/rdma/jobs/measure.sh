# Runs the tools that examine a cluster on RDMA devices: the doctor, `bench paths` of one host, and `bench exchange`.
# The exchange runs between two hosts over ofi and over ucx, with the ps in guest 1.
. "$LAB/jobs/steps.sh"
gradrail=$BUILD/bin/gradrail
QUICK="--rounds 1 --seconds 0.05"

# said STEP FILE PATTERN: passes if a line of FILE matches PATTERN.
said() {
  local line
  line=$(grep -m1 -E "$3" "$2") && pass "$1" "${line:0:100}" || fail "$1" "no /$3/: $(tail -n 2 "$2")"
}

if [ "$ROLE" = 0 ]; then
  timeout 120 "$gradrail" doctor --require rdma > "$OUT/doctor.txt" 2>&1 || fail doctor.exit "exit status $?"
  said doctor.proof "$OUT/doctor.txt" 'rxe0.*(arrived|moved)|(arrived|moved).*rxe0'
  # shellcheck disable=SC2086 # several flags
  timeout 180 "$gradrail" bench paths $QUICK --bind-host "$MY_ADDRESS" > "$OUT/paths.txt" 2>&1 || fail paths.exit "exit status $?"
  said paths.ofi "$OUT/paths.txt" '^  ofi verbs.* 0$'
  said paths.ucx "$OUT/paths.txt" '^  ucx rc_verbs.* 0$'
fi
for transport in ofi ucx; do
  meet "exchange.$transport" 300
  job=worker
  [ "$ROLE" = 1 ] && job=ps
  # shellcheck disable=SC2086
  timeout 120 "$gradrail" bench exchange $QUICK -b 64K -e 64K --transport "$transport" --ps_hosts 10.7.0.2:2222 \
    --worker_hosts 10.7.0.1:2223 --job_name $job --task_index 0 > "$OUT/exchange.$transport.$ROLE" 2>&1 \
    || fail "exchange.$transport.$job" "exit status $?: $(tail -n 1 "$OUT/exchange.$transport.$ROLE")"
  [ "$ROLE" = 1 ] && said "exchange.$transport" "$OUT/exchange.$transport.1" "^  $transport .*verbs.* 65536 .* 0$"
done
exit $failed
