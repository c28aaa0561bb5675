#pragma once

#include "absl/status/status.h"
#include "absl/strings/cord.h"

namespace gradrail {

/// The program's exit codes and their meaning for the caller. `gradrail bench` has its own codes 3 and 4
/// (bench/report/report.h).
enum ExitCode : int {
  /// The run is complete.
  kGood = 0,
  /// A verification does not hold, or an error without a known remedy.
  kFailed = 1,
  /// The command line is wrong: the parser rejected it, or the status is a usage_error().
  kUsage = 2,
  /// Flags, files or environment are wrong, a resource is too small, or --require does not hold. The message names it.
  kConfiguration = 4,
  kRetry = 200,  ///< 128 and above: worth trying again, as TensorFlow's supervisors understand it
};

constexpr const char* kUsageMark = "gradrail/usage";  ///< the payload of a usage_error()

/// Marks an error of the command line or of a variable: the value is wrong on every host.
inline absl::Status usage_error(absl::Status error) {
  if (!error.ok()) error.SetPayload(kUsageMark, absl::Cord());
  return error;
}

/// Retry only what can change without a change of the configuration: peers, hosts, time.
inline ExitCode exit_code(const absl::Status& status) {
  if (status.GetPayload(kUsageMark).has_value()) return kUsage;
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kGood;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kDeadlineExceeded:
      return kRetry;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kResourceExhausted:  // memory, files, space: the limits of the host or of its configuration
    case absl::StatusCode::kDataLoss:           // a file that was given is damaged: trying again helps as little
      return kConfiguration;
    default:
      return kFailed;
  }
}

}  // namespace gradrail
