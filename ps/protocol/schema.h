#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/export.h"

namespace gradrail::ps {

/// One named tensor of the model, fp32.
struct Tensor {
  std::string name;
  std::vector<int64_t> shape;
  /// The named set of tensors that it belongs to. Each fragment is exchanged alone and counts its own steps. Tensors
  /// without a name of a fragment form one as well.
  std::string fragment = {};
  GRADRAIL_EXPORT uint64_t elements() const;
  bool operator==(const Tensor&) const = default;
};

/// All tensors, in the order in which they are flattened into one element range.
using Schema = std::vector<Tensor>;

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
  uint64_t elements = 0;               ///< with the gaps
};
GRADRAIL_EXPORT Layout layout_of(const Schema& schema);

/// Errors  INVALID_ARGUMENT names the tensor: no name, a name that is not UTF-8 or occurs twice, a dimension < 1, or
///         too many elements. A name has at most 1,024 bytes, and no control character, also that of a fragment.
GRADRAIL_EXPORT absl::Status validate(const Schema& schema);

/// The places of two values in a text about their difference.
struct Sides {
  std::string_view ours = "here";
  std::string_view theirs = "there";
};

/// The first difference, for people: "tensor 2: 'b1' [100] here, 'b1' [128] there". "" if equal.
std::string difference(const Schema& ours, const Schema& theirs, const Sides& sides = {});

}  // namespace gradrail::ps
