#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gradrail/export.h"

namespace gradrail {

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

/// Errors  INVALID_ARGUMENT names the tensor: no name, a name that is not UTF-8 or occurs twice, a dimension < 1, or
///         too many elements. A name has at most 1,024 bytes, and no control character, also that of a fragment.
GRADRAIL_EXPORT absl::Status validate(const Schema& schema);

}  // namespace gradrail
