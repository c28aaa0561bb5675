#include "tools/doctor/check.h"

#include <algorithm>

#include "fmt/format.h"
#include "tools/doctor/text.h"

namespace gradrail::tools::doctor {
namespace {

/// A host with 16 ports need not fill a screen with them.
constexpr size_t kMostEvidence = 8;

/// Adds a sentence unless it is there already: two ports that are down need one remedy.
void add_once(std::string& text, const std::string& sentence) {
  if (sentence.empty() || text.find(sentence) != std::string::npos) return;
  if (!text.empty()) text += "; ";
  text += sentence;
}

}  // namespace

const char* name_of(State state) {
  switch (state) {
    case State::none:
    case State::not_applicable:
      return "not applicable";
    case State::ok:
      return "ok";
    case State::unknown:
      return "unknown";
    case State::warning:
      return "warning";
    case State::missing:
      return "missing";
    case State::broken:
      return "broken";
  }
  return "unknown";
}

Check conclude(const std::string& topic, const std::string& name, std::vector<Finding> findings) {
  if (findings.empty()) return not_applicable(topic, name, "");
  // The worst first: it gives the check its state, and is shown even if there are many. Equal ones keep their order.
  std::stable_sort(findings.begin(), findings.end(),
                   [](const Finding& a, const Finding& b) { return a.state > b.state; });
  // Names of files can be anything, and every sentence may contain them.
  for (Finding& finding : findings)
    for (std::string* text : {&finding.evidence, &finding.consequence, &finding.remedy}) *text = clean(*text);
  Check check{.topic = topic, .name = name, .state = findings.front().state};
  for (const Finding& finding : findings) {
    if (check.evidence.size() < kMostEvidence) check.evidence.push_back(finding.evidence);
    // The remedy of a lesser state would hide that of the worst.
    if (finding.state != check.state || finding.state == State::ok) continue;
    add_once(check.consequence, finding.consequence);
    add_once(check.remedy, finding.remedy);
  }
  // The count states that the list was cut: a program that reads the JSON must not take it for complete.
  if (findings.size() > kMostEvidence)
    check.evidence.push_back(fmt::format("and {} more", findings.size() - kMostEvidence));
  return check;
}

Check not_applicable(const std::string& topic, const std::string& name, const std::string& why) {
  Check check{.topic = topic, .name = name, .state = State::not_applicable};
  if (!why.empty()) check.evidence.push_back(why);
  return check;
}

}  // namespace gradrail::tools::doctor
