#include "gpu/kernels/image.h"

// GRADRAIL_FATBIN is a file of the build folder. Hidden names instead of an array: the bytes need not pass through the
// compiler, which takes seconds for a megabyte.
asm(R"(
.pushsection .rodata
.balign 16
.globl gradrail_fatbin_begin
.hidden gradrail_fatbin_begin
gradrail_fatbin_begin:
.incbin ")" GRADRAIL_FATBIN R"("
.globl gradrail_fatbin_end
.hidden gradrail_fatbin_end
gradrail_fatbin_end:
.popsection
)");

extern "C" {
extern const unsigned char gradrail_fatbin_begin[];
extern const unsigned char gradrail_fatbin_end[];
}

namespace gradrail::gpu {

absl::Span<const unsigned char> kernel_image() {
  return {gradrail_fatbin_begin, static_cast<size_t>(gradrail_fatbin_end - gradrail_fatbin_begin)};
}

int kernel_image_version() { return GRADRAIL_FATBIN_VERSION; }

std::string_view kernel_image_description() { return GRADRAIL_FATBIN_TARGETS; }

}  // namespace gradrail::gpu
