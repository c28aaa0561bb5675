// CRC32C in parallel. The buffer is cut into runs, and each thread computes the rest of one run. A multiplication with
// x^(8 · bytes behind the run) moves the rest to its place. The sum is linear, so that the exclusive or of all rests is
// the rest of the whole buffer.
// Source  RFC 3720, 12.1 (polynomial); crc32_combine() of zlib (moving a rest).
#include <algorithm>
#include <vector>

#include "base/status.h"
#include "gpu/compute/device_compute.h"
#include "gpu/kernels/arguments.h"

namespace gradrail::gpu {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78u;  // bit-reversed 0x1edc6f41
constexpr uint32_t kOne = 0x80000000u;         // the highest bit is x^0

// Moving a rest to its place takes a thread as long as some hundred bytes; four times that are lost in the noise.
constexpr size_t kLeastRunBytes = 1024;
// Two per thread of the largest GPU (160 multiprocessors × 2,048). The sums are 1 MB to fetch and join.
constexpr size_t kMostRuns = size_t{1} << 18;

/// Product of two polynomials modulo kPolynomial.
uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = kOne; bit != 0; bit >>= 1) {
    // Bit-reversed: the highest bit is the lowest power, and multiplication by x is a shift to the right.
    if ((a & bit) != 0) product ^= b;
    b = (b >> 1) ^ (kPolynomial & (0u - (b & 1u)));
  }
  return product;
}

/// x^(8 · bytes): what a rest is multiplied by when that many bytes follow.
uint32_t shift_factor(size_t bytes) {
  uint32_t factor = kOne;
  uint32_t power = kOne >> 8;  // x^8
  // Binary exponentiation: 64 steps at most, for any length.
  for (; bytes != 0; bytes >>= 1, power = multiply(power, power)) {
    if ((bytes & 1) != 0) factor = multiply(factor, power);
  }
  return factor;
}

kernels::Crc32cArguments crc32c_arguments(const void* data, size_t bytes, size_t run_bytes, size_t runs) {
  kernels::Crc32cArguments result = {.data = static_cast<const kernels::Bytes*>(data),
                                     .bytes = bytes,
                                     .run_bytes = run_bytes,
                                     .runs = static_cast<kernels::Bits32>(runs)};
  uint32_t power = shift_factor(run_bytes);
  for (kernels::Bits32& entry : result.powers) {
    entry = power;
    power = multiply(power, power);
  }
  return result;
}

}  // namespace

absl::StatusOr<uint32_t> DeviceCompute::crc32c(const void* data, size_t bytes) {
  // Multiples of 16: in a buffer with an aligned end every run is aligned, and 16 bytes are read at a time.
  const size_t run_bytes = std::max(kLeastRunBytes, (bytes / kMostRuns + 16) / 16 * 16);
  const size_t runs = (bytes + run_bytes - 1) / run_bytes;
  // The host joins the rests: a second kernel would cost more than this loop over 1 MB.
  std::vector<uint32_t> partials(runs);
  if (runs > 0) {
    std::byte* const memory = scratch(runs * sizeof(uint32_t));
    kernels::Crc32cArguments arguments = crc32c_arguments(data, bytes, run_bytes, runs);
    arguments.partials = reinterpret_cast<kernels::Bits32*>(memory);
    launch("gradrail_crc32c", runs, arguments);
    download(partials.data(), memory, runs * sizeof(uint32_t));
  }
  GRADRAIL_RETURN_IF_ERROR(finish());
  uint32_t rest = multiply(shift_factor(bytes), ~0u);  // begin of the sum, moved past all bytes
  for (const uint32_t partial : partials) rest ^= partial;
  // CRC32C begins with all ones and inverts its result.
  return ~rest;
}

}  // namespace gradrail::gpu
