#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/doctor/check.h"
#include "tools/doctor/proofs/proof.h"

namespace gradrail::tools::doctor {

/// A word of --require, and what became of it.
struct Requirement {
  std::string word;
  bool holds = false;
  std::string why;  ///< of those that do not hold
};

/// INVALID_ARGUMENT names the unknown word and those there are.
absl::StatusOr<std::vector<std::string>> parse_requirements(const std::string& list);

/// `live`: whether proofs were possible. Of a recording only the checks can be asked, and what only a transfer shows
/// does not hold.
std::vector<Requirement> judge(const std::vector<std::string>& words, const std::vector<Check>& checks,
                               const std::vector<Proof>& proofs, bool live);

}  // namespace gradrail::tools::doctor
