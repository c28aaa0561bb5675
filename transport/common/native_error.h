#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace gradrail::transport::common {

/// The meaning of an error code of the kernel or of a library for a user.
struct ErrorMeaning {
  absl::StatusCode code = absl::StatusCode::kUnavailable;
  std::string_view hint;  ///< the usual cause or remedy; may be empty
};

/// "tcp: connect to 10.0.0.1:2223: Connection refused (is the peer running?)". `text` is the library's own.
absl::Status native_error(std::string_view transport, std::string_view doing, std::string_view text,
                          const ErrorMeaning& meaning);

/// A failed registration. Its usual cause is the limit on locked memory, which the message states with the remedies.
absl::Status locked_memory_error(std::string_view transport, size_t bytes, std::string_view text);

/// Returns "; the environment has UCX_TLS=tcp", for the reason of a library that follows such variables; "": none was
/// set. The first call decides: it precedes the variables that gradrail sets.
const std::string& environment_text(const std::string& prefix);
/// The error with that text behind it, once.
absl::Status with_environment(const absl::Status& error, const std::string& prefix);

}  // namespace gradrail::transport::common
