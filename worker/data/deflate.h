#pragma once

#include <cstdint>

namespace gradrail::worker {

/// Deflate cannot pack tighter than this (zlib's technical notes), which bounds what a file may claim to hold.
constexpr uint64_t kMaxDeflateRatio = 1032;

}  // namespace gradrail::worker
