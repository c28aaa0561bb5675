// All kernels in one translation unit: nvcc makes one image of it. Except for __global__, __device__,
// __grid_constant__, __launch_bounds__, threadIdx.x, blockIdx.x, blockDim.x and gridDim.x it is plain C++. A compiler
// that receives definitions of these can run the kernels thread after thread.
#include "gpu/kernels/crc32c.cuh"
#include "gpu/kernels/images.cuh"
#include "gpu/kernels/layers.cuh"
#include "gpu/kernels/update.cuh"
#include "gpu/kernels/vectors.cuh"
