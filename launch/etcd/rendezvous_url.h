#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace gradrail::launch {

/// Where tasks of one job find each other: "etcd://host:2379,other:2379/job", or etcds:// for TLS.
struct RendezvousUrl {
  std::vector<std::string> endpoints;  ///< "http://host:2379"
  std::string job;
  std::string text;  ///< as typed
};

/// Errors  INVALID_ARGUMENT: says what is wrong and what would be right.
absl::StatusOr<RendezvousUrl> parse_rendezvous(std::string_view text);

}  // namespace gradrail::launch
