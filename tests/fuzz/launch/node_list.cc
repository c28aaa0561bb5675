// Slurm's lists of hosts.
#include <vector>

#include "base/check.h"
#include "launch/launcher/launcher.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  constexpr size_t kMostNodes = 65'536;
  constexpr size_t kLongestName = 255;
  const absl::StatusOr<std::vector<std::string>> nodes =
      gradrail::launch::expand_nodes(gradrail::fuzz::text_of(data, bytes));
  if (!nodes.ok()) {
    gradrail::fuzz::check_refusal(nodes.status(), absl::StatusCode::kInvalidArgument, "list of nodes");
    return 0;
  }
  GRADRAIL_CHECK(!nodes->empty() && nodes->size() <= kMostNodes);
  std::string list;
  for (const std::string& node : *nodes) {
    GRADRAIL_CHECK(!node.empty() && node.size() <= kLongestName);
    GRADRAIL_CHECK(node.find_first_of("[],") == std::string::npos);
    if (nodes->size() < 100) list += (list.empty() ? "" : ",") + node;
  }
  if (list.empty()) return 0;
  // The names alone are a list of the same hosts.
  const absl::StatusOr<std::vector<std::string>> again = gradrail::launch::expand_nodes(list);
  GRADRAIL_CHECK(again.ok() && *again == *nodes);
  return 0;
}
