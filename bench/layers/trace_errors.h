#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "nlohmann/json_fwd.hpp"

namespace gradrail::bench {

/// A value as errors show it: JSON in ASCII, at most 60 characters.
std::string shown(const nlohmann::json& value);

/// DATA_LOSS: "node 8: comm_size is "abc", and must be …; correct it, or record the trace again".
/// Shapes  found: as shown(), or "missing".
absl::Status bad_field(std::string_view where, std::string_view field, std::string_view found,
                       std::string_view expected);

/// "node 3 of the file (name "x")": a node without a usable number, as errors name it.
std::string nth_node(size_t number, const nlohmann::json& node);

/// Takes the objects of a trace one by one and drops them: a trace has millions of them. `take_if` returns false for
/// an object that belongs to the one around it.
/// Errors  the first one that `take_if` has put into its status. DATA_LOSS: line and column of damaged JSON.
absl::Status take_objects(std::string_view text,
                          const std::function<bool(const nlohmann::json& object, absl::Status& status)>& take_if);

/// DATA_LOSS: what the file is, and how each kind that is read begins.
absl::Status unknown_kind(std::string_view what);

}  // namespace gradrail::bench
