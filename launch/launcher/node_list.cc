#include <algorithm>
#include <optional>

#include "base/parse_number.h"
#include "base/status.h"
#include "fmt/format.h"
#include "launch/launcher/launcher.h"

namespace gradrail::launch {
namespace {

constexpr size_t kMostNodes = 65536;  // Slurm's own limit; without it [0-999999999] would exhaust the memory

constexpr size_t kMostDigits = 20;  // a 64-bit number has no more
// The limit of DNS. Without it a text of 100 KB with a range of 65,536 numbers would take 6 GB.
constexpr size_t kLongestName = 255;

using Names = std::vector<std::string>;

absl::Status bad(std::string_view nodes, std::string_view why) {
  return absl::InvalidArgumentError(fmt::format("'{}' is not a list of nodes such as n[1-4],x7: {}", nodes, why));
}

/// "03-05,9": 03 04 05 9.
absl::StatusOr<Names> expand_ranges(std::string_view ranges, std::string_view nodes) {
  Names numbers;
  // A range ends at a comma or at the end of the text. An empty number is invalid and fails.
  while (true) {
    const size_t comma = ranges.find(',');
    const std::string_view range = ranges.substr(0, comma);
    const size_t dash = range.find('-');
    const std::string_view low = range.substr(0, dash);
    const std::optional<uint64_t> from = parse_number<uint64_t>(low);
    const std::optional<uint64_t> to =
        dash == std::string_view::npos ? from : parse_number<uint64_t>(range.substr(dash + 1));
    if (!from || !to || *to < *from) return bad(nodes, fmt::format("'{}' is not a range of numbers", range));
    if (low.size() > kMostDigits) return bad(nodes, fmt::format("'{}' has too many digits", low));
    // The check is a difference, because the number of names may overflow.
    if (*to - *from >= kMostNodes - numbers.size()) return bad(nodes, "too many");
    // Leading zeros are part of the names: n[08-10] is n08, n09, n10.
    for (uint64_t i = 0; i <= *to - *from; ++i) numbers.push_back(fmt::format("{:0{}}", *from + i, low.size()));
    if (comma == std::string_view::npos) return numbers;
    ranges.remove_prefix(comma + 1);
  }
}

/// Expands one element of the list, with any number of brackets.
absl::StatusOr<Names> expand_element(std::string_view element, std::string_view nodes) {
  Names names{""};
  while (!element.empty()) {
    const size_t open = element.find('[');
    const std::string_view plain = element.substr(0, open);
    if (plain.find(']') != std::string_view::npos) return bad(nodes, "']' without '['");
    // All names of an element are about as long as the first one.
    if (names.front().size() + plain.size() > kLongestName) return bad(nodes, "a name has more than 255 characters");
    for (std::string& name : names) name += plain;
    if (open == std::string_view::npos) break;
    const size_t close = element.find(']', open);
    if (close == std::string_view::npos) return bad(nodes, "'[' without ']'");
    GRADRAIL_ASSIGN_OR_RETURN(const Names numbers, expand_ranges(element.substr(open + 1, close - open - 1), nodes));
    // The product does not overflow, since both factors are at most kMostNodes.
    if (names.size() * numbers.size() > kMostNodes) return bad(nodes, "too many");
    Names longer;
    for (const std::string& name : names)
      for (const std::string& each : numbers) longer.push_back(name + each);
    names = std::move(longer);
    element.remove_prefix(close + 1);
  }
  const auto is_longer = [](const std::string& a, const std::string& b) { return a.size() < b.size(); };
  if (std::max_element(names.begin(), names.end(), is_longer)->size() > kLongestName)
    return bad(nodes, "a name has more than 255 characters");
  return names;
}

/// Index of the first comma outside brackets, because a comma inside separates ranges; the size without one.
size_t end_of_element(std::string_view nodes) {
  bool inside = false;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i] == '[') inside = true;
    if (nodes[i] == ']') inside = false;
    if (nodes[i] == ',' && !inside) return i;
  }
  return nodes.size();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> expand_nodes(std::string_view nodes) {
  Names all;
  for (std::string_view rest = nodes; true;) {
    const size_t end = end_of_element(rest);
    if (end == 0) return bad(nodes, "an empty name");
    GRADRAIL_ASSIGN_OR_RETURN(Names some, expand_element(rest.substr(0, end), nodes));
    if (all.size() + some.size() > kMostNodes) return bad(nodes, "too many");
    all.insert(all.end(), some.begin(), some.end());
    // A comma at the end leaves an empty rest, which fails in the next round.
    if (end == rest.size()) return all;
    rest.remove_prefix(end + 1);
  }
}

}  // namespace gradrail::launch
