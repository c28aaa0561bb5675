#include "tools/doctor/require.h"

#include <algorithm>
#include <functional>

#include "absl/strings/str_split.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "transport/registry.h"

namespace gradrail::tools::doctor {
namespace {

struct Rule {
  std::string word;
  std::vector<std::string> others;          ///< topics and checks: none of them may be missing or broken
  std::string present;                      ///< a check that must be about something; "": none
  std::function<bool(const Proof&)> about;  ///< the transfers that could show it; null: no transfer does
  bool by_rdma = false;                     ///< the transfer must have used an RDMA device
  bool needs_transfer = false;              ///< nothing else shows it
  bool is_strict = false;                   ///< `present` must be ok: a warning about it says that nothing works
};

std::vector<Rule> rules() {
  std::vector<Rule> all = {
      {"rdma", {topic::kRdma}, "rdma-ports", [](const Proof& proof) { return !proof.gpu; }, true},
      {"gpu", {"gpu-cublas"}, "gpu-driver", nullptr, false, false, true},
      // Without cuBLAS: the GPU of a ps multiplies nothing.
      {"gpu-direct",
       {topic::kRdma, "gpu-driver"},
       "gpu-nic-access",
       [](const Proof& proof) { return proof.gpu; },
       true},
      {"tasks", {}, "tasks", nullptr},
  };
  for (const transport::Transport& transport : transport::transports()) {
    const std::string name = transport.name;
    all.push_back({name, {}, "", [name](const Proof& proof) { return proof.transport == name; }, false, true});
  }
  return all;
}

std::string describe(const Check& check) {
  return fmt::format("{} is {}{}", check.name, name_of(check.state),
                     check.evidence.empty() ? "" : fmt::format(" ({})", check.evidence.front()));
}

std::string objection_of_proofs(const Rule& rule, const std::vector<Proof>& proofs) {
  // One transfer is enough; otherwise the last failure is the reason.
  std::string why = "nothing was moved that way";
  for (const Proof& proof : proofs) {
    if (!rule.about(proof)) continue;
    if (proof.moved && (proof.rdma || !rule.by_rdma)) return "";
    if (!proof.moved) why = fmt::format("{} over {} moved nothing: {}", proof.transport, proof.device, proof.why_not);
  }
  return why;
}

std::string objection(const Rule& rule, const std::vector<Check>& checks, const std::vector<Proof>& proofs,
                      bool proven) {
  if (rule.needs_transfer && !proven) return "only a transfer shows it: leave out --no-proof";
  for (const Check& check : checks) {
    const bool is_named = check.name == rule.present;
    const bool counts = is_named || std::any_of(rule.others.begin(), rule.others.end(), [&](const std::string& other) {
                          return other == check.topic || other == check.name;
                        });
    if (counts && !holds_up(check.state)) return describe(check);
    if (is_named && check.state == State::not_applicable) return describe(check);
    if (is_named && rule.is_strict && check.state != State::ok) return describe(check);
  }
  // An empty function means that no transfer shows the feature: then the checks alone decide.
  return rule.about && proven ? objection_of_proofs(rule, proofs) : "";
}

}  // namespace

absl::StatusOr<std::vector<std::string>> parse_requirements(const std::string& list) {
  std::vector<std::string> words;
  if (list.empty()) return words;
  const std::vector<Rule> all = rules();
  // The words are checked before the probes run, so that a typing error costs no minutes.
  for (const std::string& word : std::vector<std::string>(absl::StrSplit(list, ','))) {
    const bool known = std::any_of(all.begin(), all.end(), [&](const Rule& rule) { return rule.word == word; });
    if (!known) {
      std::vector<std::string> names;
      for (const Rule& rule : all) names.push_back(rule.word);
      return absl::InvalidArgumentError(fmt::format("--require '{}': there are {}", word, fmt::join(names, ", ")));
    }
    words.push_back(word);
  }
  return words;
}

std::vector<Requirement> judge(const std::vector<std::string>& words, const std::vector<Check>& checks,
                               const std::vector<Proof>& proofs, bool proven) {
  // The order is that of the rules, not of the words: a repeated word gives one line.
  std::vector<Requirement> requirements;
  for (const Rule& rule : rules()) {
    if (std::find(words.begin(), words.end(), rule.word) == words.end()) continue;
    const std::string why = objection(rule, checks, proofs, proven);
    requirements.push_back({rule.word, why.empty(), why});
  }
  return requirements;
}

}  // namespace gradrail::tools::doctor
