#include "gpu/kernels/image.h"

namespace gradrail::gpu {
namespace {

constexpr std::string_view kWords =
    "gradrail was built without nvcc: configure with -DGRADRAIL_CUDA=ON and build again";
static_assert(kWords.starts_with(kNoKernels));

}  // namespace

absl::Span<const unsigned char> kernel_image() {
  return {reinterpret_cast<const unsigned char*>(kWords.data()), kWords.size() + 1};
}

int kernel_image_version() { return 0; }

std::string_view kernel_image_description() { return kWords; }

}  // namespace gradrail::gpu
