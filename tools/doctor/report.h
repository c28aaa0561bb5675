#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tools/doctor/check.h"
#include "tools/doctor/proofs/proof.h"
#include "tools/doctor/require.h"

namespace gradrail::tools::doctor {

/// Everything that was found out.
struct Report {
  std::vector<std::pair<std::string, std::string>> machine;
  std::vector<std::pair<std::string, std::string>> versions;
  std::vector<Check> checks;
  std::vector<Proof> proofs;
  std::string why_no_proofs;  ///< "": they were made
  std::vector<Requirement> requirements;

  bool all_required_hold() const;
};

/// Formats the report for people, not wider than 100 columns except for paths and commands that are longer. `colour`:
/// for terminals.
std::string to_text(const Report& report, bool colour);
/// Formats the report as one object: version, machine, versions, checks, proofs, require.
std::string to_json(const Report& report);

}  // namespace gradrail::tools::doctor
