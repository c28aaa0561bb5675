#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace gradrail::transport::rails {

/// Prefix of the list of rails in an address.
inline constexpr std::string_view kLanesPrefix = "lanes:";
inline constexpr uint32_t kMaxLanes = 64;
inline constexpr uint32_t kMaxRails = 16;
inline constexpr size_t kBundleIdBytes = 16;

/// The first message of the accepting side, on lane 0: all lanes have arrived.
inline constexpr std::string_view kWelcome = "GRbundle";

/// The first message on each lane, from the connecting side. docs/design/wire-formats.md draws its bytes.
struct Greeting {
  std::string id;           ///< [kBundleIdBytes], random: the same on all lanes of a bundle
  uint32_t lane = 0;        ///< index, less than `lanes`
  uint32_t lanes = 1;       ///< 1 to kMaxLanes
  uint32_t mbit_per_s = 0;  ///< the sender's share of its link for this lane; 0: unknown

  std::string encode() const;
  /// Errors  INVALID_ARGUMENT: not a greeting of this version, or a value beyond its limit.
  static absl::StatusOr<Greeting> decode(absl::Span<const std::byte> message);
};

}  // namespace gradrail::transport::rails
