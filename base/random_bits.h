#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace gradrail {

/// Unpredictable bits for tokens, incarnations and identities. For values that are the same in every run use
/// base/random.h. The process stops when the kernel has no random bits, because predictable tokens would be unsafe.
/// Threads  Any.
std::string random_bytes(size_t count);
uint64_t random_bits();

}  // namespace gradrail
