#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace gradrail::bench {

/// Collectives of PyTorch that reduce gradients: "allreduce", "_reduce_scatter_base",
/// "reduce_scatter_tensor_coalesced", "reduce". Case, digits and signs do not count.
bool is_reduction(std::string_view collective);

/// The collective of an operator of PyTorch, "c10d::allreduce_": "allreduce_". "" for other names.
std::string collective_of_operator(std::string_view name);

/// A reduction has at most this many elements, a terabyte of fp32. A larger number is damage.
inline constexpr uint64_t kMostElements = 250'000'000'000;

/// The elements of a list of shapes of tensors, [[2, 3], []]: 7. Lists may contain lists. 0: an empty list, as earlier
/// versions of PyTorch write for a list of tensors, or empty tensors.
/// Shapes  where: the event or the node; field: the field with the shapes. Both begin the message of an error.
/// Errors  DATA_LOSS: a dimension that is no number from 0, or more than kMostElements.
absl::StatusOr<uint64_t> elements_of(const nlohmann::json& shapes, std::string_view where, std::string_view field);

/// A number of elements from 0 to kMostElements. Shapes and errors  as above.
absl::StatusOr<uint64_t> element_count(const nlohmann::json& number, std::string_view where, std::string_view field);

/// The elements that an operator c10d::… reduces. A reduce-scatter has its results first, then its gradients. 0: the
/// list is too short.
/// Shapes  shapes: one list for each argument; the others and the errors as above.
absl::StatusOr<uint64_t> elements_of_operator(std::string_view collective, const nlohmann::json& shapes,
                                              std::string_view where, std::string_view field);

}  // namespace gradrail::bench
