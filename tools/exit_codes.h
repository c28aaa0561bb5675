#pragma once

#include "absl/status/status.h"

namespace gradrail::tools {

/// The program's exit codes and their meaning for the caller. `gradrail bench` has its own codes 3 and 4
/// (bench/report/report.h).
enum ExitCode : int {
  /// The run is complete.
  kGood = 0,
  /// A requirement or a verification does not hold, or an error without a known remedy.
  kFailed = 1,
  /// The parser rejected the command line.
  kUsage = 2,
  /// Flags, files or environment are wrong; the message names which.
  kConfiguration = 4,
  kRetry = 200,  ///< 128 and above: worth trying again, as TensorFlow's supervisors understand it
};

/// Retry only what can change without a change of the configuration: peers, hosts, time.
inline ExitCode exit_code(const absl::Status& status) {
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
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kDataLoss:  // a file that was given is damaged: trying again helps as little
      return kConfiguration;
    default:
      return kFailed;
  }
}

}  // namespace gradrail::tools
