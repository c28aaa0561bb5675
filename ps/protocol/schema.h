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
  GRADRAIL_EXPORT uint64_t elements() const;
  bool operator==(const Tensor&) const = default;
};

/// All tensors, in the order in which they are flattened into one element range.
using Schema = std::vector<Tensor>;

/// Errors  INVALID_ARGUMENT names the tensor: no name, a name that is not UTF-8 or occurs twice, a dimension < 1, or
///         too many elements. A name has at most 1,024 bytes, and no control character.
GRADRAIL_EXPORT absl::Status validate(const Schema& schema);

/// The places of two values in a text about their difference.
struct Sides {
  std::string_view ours = "here";
  std::string_view theirs = "there";
};

/// The first difference, for people: "tensor 2: 'b1' [100] here, 'b1' [128] there". "" if equal.
std::string difference(const Schema& ours, const Schema& theirs, const Sides& sides = {});

}  // namespace gradrail::ps
