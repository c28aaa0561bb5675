#!/bin/bash
# run_cluster.sh LOGISTIC LOGISTIC_C: a parameter server, a C++ worker and a C worker, each in its own process.
set -euo pipefail
logistic=$1 logistic_c=$2
workers=localhost:1,localhost:2

coproc server { exec "$logistic" --local --serve --worker_hosts "$workers"; }
server_pid=$server_PID
trap 'kill "$server_pid" 2>/dev/null || true' EXIT
read -r -t 20 _ address <&"${server[0]}"

"$logistic" --ps_hosts "$address" --worker_hosts "$workers" --task_index 0 --mode sync &
chief=$!
"$logistic_c" "$address" "$workers" 1 sync
wait "$chief"
wait "$server_pid"
