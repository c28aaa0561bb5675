#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace gradrail {

/// Bits that nobody can guess and nobody else has: for tokens, incarnations and identities. For what must be the same
/// in every run there is base/random.h. The process ends when the kernel has none: going on with guessable ones would
/// be worse.
/// Threads  Any.
std::string random_bytes(size_t count);
uint64_t random_bits();

}  // namespace gradrail
