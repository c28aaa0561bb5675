#!/bin/sh
# Where the shards of a large cluster use 0.9 of their line rate: prints tables, and draws a picture of them.
# study.sh BINARY FOLDER PICTURE.svg
set -eu
binary=$1 folder=$2 picture=$3
here=$(dirname "$0")
mkdir -p "$folder"
# An eighth of 4,096 x 256 in workers and shards. The shards have four times as many bytes of the model as there.
eighth="--workers 512 --ps 32 --model 128M"
few="--warmup 1 --steps 3"
buckets="$few --sweep bucket_kib=64:4096:*2"

sweep() { # NAME FLAGS...: a table, and the file NAME.json
  name=$1
  shift
  echo "## $name: gradrail predict $*"
  "$binary" predict "$@" --json > "$folder/$name.json"
  python3 -B "$here/table.py" "$folder/$name.json"
}

[ -e "$folder/whole.json" ] || sweep whole --workers 4096 --ps 256 --transport rdma --warmup 1 --steps 1 --sweep bucket_kib=128,256,512,1024
sweep rdma $eighth --transport rdma $buckets
sweep two-shards $eighth --transport rdma --shards 2 $buckets
sweep fast-nic $eighth --transport rdma --nic 400 $buckets
sweep fast-nic-shards $eighth --transport rdma --nic 400 --shards 8 $buckets
sweep slow-memory $eighth --transport rdma --shards 2 --memory 25 $buckets
sweep tcp $eighth --unfairness 0.2 $buckets
sweep tcp-shards $eighth --unfairness 0.2 --shards 8 $buckets
sweep int8 $eighth --transport rdma --push int8 --return bf16 --shards 2 $buckets
best="--transport rdma --shards 2 --bucket_kib 128"
sweep workers $best --ps 32 --model 128M $few --sweep workers=4:1024:*2
sweep oversubscription $eighth $best $few --sweep oversubscription=1:16:*2
sweep spread $eighth $best --steps 10 --compute_ms 200 --sweep compute_sigma=0,0.05,0.1,0.2,0.4
sweep modes $eighth $best --steps 10 --compute_ms 200 --compute_sigma 0.2 --sweep mode=sync,backup:16,quorum:496,async
sweep loss $eighth $best $few --sweep loss=0,0.00001,0.0001,0.001,0.01
python3 -B "$here/plot_sweep.py" -o "$picture" --title "Share of the line rate of the shards' NICs: 512 workers, 32 ps, 4 MiB of each model at a ps" \
  "RDMA, 100 Gbit/s, 1 shard=$folder/rdma.json" "2 shards of a ps=$folder/two-shards.json" \
  "400 Gbit/s=$folder/fast-nic.json" "400 Gbit/s, 8 shards=$folder/fast-nic-shards.json" \
  "2 shards, memory 25 GB/s=$folder/slow-memory.json" "TCP, 1 shard=$folder/tcp.json" "TCP, 8 shards=$folder/tcp-shards.json"
