#pragma once

#include <cstddef>
#include <cstdint>

namespace gradrail {

/// CRC-32C (Castagnoli, RFC 3720) of `bytes` bytes; `crc` continues an earlier sum. crc32c("123456789") = 0xe3069283.
/// Uses SSE4.2 where the processor has it (chosen at run time), three streams wide on long runs.
uint32_t crc32c(const void* data, size_t bytes, uint32_t crc = 0);

/// The two ways to compute it, for tests and benchmarks; crc32c_hardware only where has_crc32c_hardware().
uint32_t crc32c_portable(const void* data, size_t bytes, uint32_t crc = 0);
uint32_t crc32c_hardware(const void* data, size_t bytes, uint32_t crc = 0);
bool has_crc32c_hardware();

}  // namespace gradrail
