#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace CLI {
class App;
}

namespace gradrail::tools {

/// The flags of `gradrail doctor` as typed.
struct DoctorFlags {
  std::string require;
  std::string cluster;
  std::string ps_hosts;
  bool json = false;
  bool no_proof = false;
};

void add_doctor_flags(CLI::App& command, DoctorFlags& flags);

/// Prints what decides whether RDMA and GPUDirect work here. Whether all of --require holds.
/// Errors  INVALID_ARGUMENT, NOT_FOUND name the flag, the cause and what would be right.
absl::StatusOr<bool> run_doctor(const DoctorFlags& flags);

}  // namespace gradrail::tools
