# Runs training with towers on simulated GPUs; it needs train.sh. The memory of a simulated GPU is memory of the
# process, so that soft-RoCE can move it between the guests. The reference run is staged, over tcp, on the same GPUs.
hmem=$BUILD/tests/simulated_hmem/libsimulated_hmem_ofi.so
cat > "$OUT/gradrail.$ROLE" << END
#!/bin/sh
export GRADRAIL_SIMULATED_GPU=devices=2 GRADRAIL_SIMULATED_LIBFABRIC=1.20
LD_LIBRARY_PATH=$BUILD/tests/simulated_gpu LD_PRELOAD=$hmem exec "$BUILD/bin/gradrail" "\$@"
END
chmod +x "$OUT/gradrail.$ROLE"
gradrail=$OUT/gradrail.$ROLE
RUN_SECONDS=150 # the simulated device computes on an emulated processor

# over_gpu NAME FLAG…: sends gradients from GPU memory by dma-buf over verbs.
over_gpu() {
  local name=$1
  shift
  train "$name" --transport ofi --no-fallback --ofi_provider verbs --plugin_dir "$BUILD/tests/plugins_1_20" --towers 1 \
    --gpu-direct dmabuf "$@"
  [ "$ROLE" = 0 ] && [ -s "$OUT/$name.hash" ] || return
  same_hash "$name"
  took_path "$name" "verbs.*gpu-direct(dmabuf)"
  moved_by_rdma "$name"
}
