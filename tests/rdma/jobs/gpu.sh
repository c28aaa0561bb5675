# Runs the GPU part of the transport suite over $TRANSPORT, once for each transfer in $WAYS. The memory of the simulated
# GPU is memory of the process, which soft-RoCE registers. The network libraries of this host are built without CUDA. A
# preloaded library (tests/gpu/simulated) adds CUDA support.
export GRADRAIL_TEST_HOST=$MY_ADDRESS
export LD_LIBRARY_PATH=$BUILD/tests/simulated_gpu
program=$BUILD/tests/gpu_conformance_test
status=0
for way in $WAYS; do
  export GRADRAIL_TEST_GPU_DIRECT=$way
  if [ $way = dmabuf ]; then export GRADRAIL_SIMULATED_LIBFABRIC=1.20 GRADRAIL_PLUGIN_DIR=$BUILD/tests/plugins_1_20; fi
  LD_PRELOAD=$BUILD/tests/simulated_hmem/libsimulated_hmem_$TRANSPORT.so \
    "$program" --gtest_filter="*/${TRANSPORT}_threads" || status=$?
done
exit $status
