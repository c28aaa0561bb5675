#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/doctor/check.h"
#include "tools/doctor/proofs/proof.h"

namespace gradrail::tools::doctor {

/// A word of --require, and its result.
struct Requirement {
  std::string word;
  bool holds = false;
  std::string why;  ///< reason of a word that does not hold
};

/// INVALID_ARGUMENT names the unknown word and those there are.
absl::StatusOr<std::vector<std::string>> parse_requirements(const std::string& list);

/// Checks the words of --require. `proven`: whether transfers were tried. Without them, results that only a
/// transfer shows do not hold.
std::vector<Requirement> judge(const std::vector<std::string>& words, const std::vector<Check>& checks,
                               const std::vector<Proof>& proofs, bool proven);

}  // namespace gradrail::tools::doctor
