#!/bin/bash
# run_cluster.sh GRADRAIL LOGISTIC LOGISTIC_C: a parameter server, a C++ and a C worker, each a process of its own.
set -euo pipefail
gradrail=$1 logistic=$2 logistic_c=$3
workers=localhost:1,localhost:2

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
address=127.0.0.1:$port

"$gradrail" train --job_name ps --task_index 0 --ps_hosts "$address" --worker_hosts "$workers" &
server=$!
trap 'kill "$server" 2>/dev/null || true' EXIT
"$logistic" "$address" "$workers" 0 sync &
chief=$!
"$logistic_c" "$address" "$workers" 1 sync
wait "$chief"
wait "$server"
