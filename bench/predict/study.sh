#!/bin/sh
# Where the shards of a large cluster use 0.9 of their line rate: prints tables, and draws a picture of them.
# study.sh BINARY FOLDER PICTURE.svg      PYTHON: a Python with matplotlib
set -eu
binary=$1 folder=$2 picture=$3
here=$(dirname "$0")
mkdir -p "$folder"
# A sixteenth of 4,096 x 256 in workers and shards. A ps has four times as many bytes of the model as there.
part="--workers 256 --ps 16 --model 64M"
few="--warmup 1 --steps 2"
buckets="$few --sweep bucket_kib=32:4096:*2"

sweep() { # NAME FLAGS...: a table, and the file NAME.json, which is not computed again
  name=$1
  shift
  echo "## $name: gradrail predict $*"
  [ -e "$folder/$name.json" ] || "$binary" predict "$@" --json > "$folder/$name.part"
  [ -e "$folder/$name.json" ] || mv "$folder/$name.part" "$folder/$name.json"
  python3 -B "$here/table.py" "$folder/$name.json"
}

sweep rdma $part --transport rdma $buckets
sweep two-shards $part --transport rdma --shards 2 $buckets
sweep fast-nic $part --transport rdma --nic 400 $buckets
sweep fast-nic-shards $part --transport rdma --nic 400 --shards 8 $buckets
sweep slow-memory $part --transport rdma --shards 2 --memory 25 $buckets
sweep tcp $part --unfairness 0.2 $buckets
sweep tcp-shards $part --unfairness 0.2 --shards 8 $buckets
best="--transport rdma --shards 2 --bucket_kib 128"
sweep workers $best --ps 16 --model 64M $few --sweep workers=4:1024:*4
sweep oversubscription $part $best $few --sweep oversubscription=1:16:*2
sweep spread $part $best --steps 10 --compute_ms 200 --sweep compute_sigma=0,0.05,0.1,0.2,0.4
sweep modes $part $best --steps 10 --compute_ms 200 --compute_sigma 0.2 --sweep mode=sync,quorum:248,async
sweep formats $part $best $few --sweep push=fp32,bf16,int8,int4 --sweep return=fp32,bf16
"${PYTHON:-/usr/bin/python3}" -B "$here/plot_sweep.py" -o "$picture" --title "Share of the line rate of the shards' NICs: 256 workers, 16 ps, 4 MiB of the model at each ps" \
  "RDMA, 100 Gbit/s, 1 shard=$folder/rdma.json" "2 shards of a ps=$folder/two-shards.json" \
  "400 Gbit/s=$folder/fast-nic.json" "400 Gbit/s, 8 shards=$folder/fast-nic-shards.json" \
  "2 shards, memory 25 GB/s=$folder/slow-memory.json" "TCP, 1 shard=$folder/tcp.json" "TCP, 8 shards=$folder/tcp-shards.json"
# Gigabytes of memory, and minutes.
sweep whole --workers 4096 --ps 256 --transport rdma --warmup 1 --steps 1 --sweep bucket_kib=1024,256,64
