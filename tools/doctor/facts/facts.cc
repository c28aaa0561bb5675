#include "tools/doctor/facts/facts.h"

#include <utility>

#include "absl/strings/str_replace.h"
#include "fmt/format.h"

namespace gradrail::tools::doctor {

std::string Facts::fill(const std::string& text) const {
  std::vector<std::pair<std::string, std::string>> replacements;
  for (const auto& [name, value] : values_) replacements.emplace_back(fmt::format("{{{}}}", name), value);
  // The replacement is one pass: a brace in a value is not a name.
  return absl::StrReplaceAll(text, replacements);
}

}  // namespace gradrail::tools::doctor
