#include "tools/doctor/report.h"

#include <algorithm>
#include <map>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "nlohmann/json.hpp"
#include "tools/doctor/text.h"

namespace gradrail::tools::doctor {
namespace {

/// Lines of evidence hold paths of /sys with 60 characters and more: 80 columns would break almost each of them.
constexpr size_t kColumns = 100;
/// Column of the text of a check, behind its state and name.
constexpr size_t kIndent = 34;

const char* colour_of(State state) {
  switch (state) {
    case State::ok:
      return "\033[32m";
    case State::warning:
      return "\033[33m";
    case State::missing:
    case State::broken:
      return "\033[31m";
    default:
      return "\033[2m";
  }
}

std::string painted(State state, const std::string& text, bool colour) {
  return colour ? fmt::format("{}{}\033[0m", colour_of(state), text) : text;
}

/// Returns `text` behind `head`, its further lines below its first. A word is never split: users copy paths and
/// commands from the report.
std::string wrapped(const std::string& head, size_t head_columns, const std::string& text) {
  std::string out = head;
  size_t column = head_columns;
  bool first = true;
  for (const std::string& word : words_of(text)) {
    if (!first && column + 1 + word.size() > kColumns) {
      out += "\n" + std::string(head_columns, ' ');
      column = head_columns;
    } else if (!first) {
      out += " ";
      ++column;
    }
    out += word;
    column += word.size();
    first = false;
  }
  out.resize(out.find_last_not_of(' ') + 1);
  return out + "\n";
}

std::string labelled(const char* label, const std::string& text) {
  return text.empty() ? "" : wrapped(fmt::format("{:{}}{:<7}", "", kIndent - 7, label), kIndent, text);
}

std::string draw(const Check& check, bool colour) {
  // Padded before it is painted: the escape sequences have no width on the screen, but count as characters.
  const std::string state = fmt::format("{:<15}", name_of(check.state));
  const std::string head = fmt::format("  {}{:<17}", painted(check.state, state, colour), check.name);
  std::string text;
  for (const std::string& evidence : check.evidence)
    text += wrapped(text.empty() ? head : std::string(kIndent, ' '), kIndent, evidence);
  // A check without evidence still has its line.
  if (text.empty()) text = head + "\n";
  return text + labelled("so:", check.consequence) + labelled("do:", check.remedy);
}

std::string draw(const Proof& proof, bool colour) {
  const State state = proof.moved ? State::ok : State::missing;
  const std::string head =
      fmt::format("  {}{:<17}", painted(state, fmt::format("{:<15}", proof.moved ? "moved" : "not moved"), colour),
                  proof.transport);
  const std::string what =
      proof.moved ? fmt::format("{} over {}, both ways, compared: {}{}, {:.0f} ms from opening on", proof.memory,
                                proof.device, proof.path, proof.rdma ? " (RDMA)" : "", proof.millis)
                  : fmt::format("{} over {}: {}", proof.memory, proof.device, proof.why_not);
  return wrapped(head, kIndent, what);
}

std::string draw(const Requirement& requirement, bool colour) {
  const State state = requirement.holds ? State::ok : State::broken;
  const std::string head = fmt::format(
      "  {}{:<17}", painted(state, fmt::format("{:<15}", requirement.holds ? "holds" : "does not hold"), colour),
      requirement.word);
  return wrapped(head, kIndent, requirement.why);
}

/// "1 broken, 2 warnings, 20 ok".
std::string count_states(const std::vector<Check>& checks) {
  // The worst state first.
  std::map<State, int, std::greater<>> count;
  for (const Check& check : checks) ++count[check.state];
  std::vector<std::string> words;
  for (const auto& [state, number] : count) words.push_back(fmt::format("{} {}", number, name_of(state)));
  return fmt::format("{}", fmt::join(words, ", "));
}

nlohmann::json object_of(const std::vector<std::pair<std::string, std::string>>& pairs) {
  nlohmann::json object = nlohmann::json::object();
  for (const auto& [name, value] : pairs) object[name] = value;
  return object;
}

}  // namespace

bool Report::all_required_hold() const {
  return std::all_of(requirements.begin(), requirements.end(), [](const Requirement& each) { return each.holds; });
}

std::string to_text(const Report& report, bool colour) {
  std::vector<std::string> about;
  for (const auto& [name, value] : report.machine) about.push_back(fmt::format("{} {}", name, value));
  std::string text = wrapped("", 0, fmt::format("gradrail doctor of this machine: {}", fmt::join(about, ", ")));
  std::string topic;
  for (const Check& check : report.checks) {
    if (check.topic != topic) text += fmt::format("{}\n", check.topic);
    topic = check.topic;
    text += draw(check, colour);
  }
  text += "proofs\n";
  for (const Proof& proof : report.proofs) text += draw(proof, colour);
  if (!report.why_no_proofs.empty()) text += wrapped("  ", 2, report.why_no_proofs);
  if (!report.requirements.empty()) text += "required\n";
  for (const Requirement& requirement : report.requirements) text += draw(requirement, colour);
  return text + count_states(report.checks) + "\n";
}

std::string to_json(const Report& report) {
  // Ordered: the keys appear as written here, so that two reports can be compared as text.
  using Json = nlohmann::ordered_json;
  Json checks = Json::array(), proofs = Json::array(), require = Json::array();
  for (const Check& check : report.checks) {
    checks.push_back({{"name", check.name},
                      {"topic", check.topic},
                      {"state", name_of(check.state)},
                      {"evidence", check.evidence},
                      {"consequence", check.consequence},
                      {"remedy", check.remedy}});
  }
  for (const Proof& proof : report.proofs) {
    proofs.push_back({{"transport", proof.transport},
                      {"device", proof.device},
                      {"memory", proof.memory},
                      {"moved", proof.moved},
                      {"rdma", proof.rdma},
                      {"path", proof.path},
                      {"millis", proof.millis},
                      {"why_not", proof.why_not}});
  }
  for (const Requirement& each : report.requirements)
    require.push_back({{"word", each.word}, {"holds", each.holds}, {"why", each.why}});
  Json whole{{"version", GRADRAIL_VERSION},
             {"machine", object_of(report.machine)},
             {"versions", object_of(report.versions)},
             {"checks", checks},
             {"proofs", proofs},
             {"why_no_proofs", report.why_no_proofs},
             {"require", require}};
  // The text is valid whatever a library or a name contains: bytes that are not UTF-8 are replaced.
  return whole.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace gradrail::tools::doctor
