#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gradrail/schema.h"

namespace gradrail::ps {

/// The limit for all tensors together: 1 TiB of fp32. No byte count in a header overflows below it.
inline constexpr uint64_t kMaxElements = uint64_t{1} << 38;

/// The places of the tensors in the flattened model, in elements. Tensors lie behind each other. Where the fragment
/// changes, the next tensor begins at a multiple of 64 elements: no bucket and no block of a push has two fragments.
struct Layout {
  /// Elements of one fragment, up to the next run.
  struct Run {
    uint64_t first = 0;
    uint32_t fragment = 0;
  };
  std::vector<uint64_t> tensor_first;
  std::vector<uint32_t> tensor_fragment;
  std::vector<Run> runs;
  std::vector<std::string> fragments;  ///< their names, in the order of their first tensors
  uint64_t elements = 0;               ///< elements of the model with the gaps

  /// The fragment of an element; an element in a gap has that of the run before.
  uint32_t fragment_at(uint64_t element) const;
};
Layout layout_of(const Schema& schema);

/// The places of two values in a text about their difference.
struct Sides {
  std::string_view ours = "here";
  std::string_view theirs = "there";
};

/// The first difference, for people: "tensor 2: 'b1' [100] here, 'b1' [128] there". "" if equal.
std::string difference(const Schema& ours, const Schema& theirs, const Sides& sides = {});

}  // namespace gradrail::ps
