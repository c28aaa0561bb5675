#pragma once

#include <functional>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "tools/doctor/tree.h"

namespace gradrail::tools::doctor {

/// The system that is examined: its files, and answers that only a running one gives. A recording holds those as files
/// in observed/.
class System {
 public:
  using Ask = std::function<absl::StatusOr<std::string>()>;

  explicit System(Tree tree) : tree_(std::move(tree)) {}

  Tree& tree() { return tree_; }
  bool is_live() const { return tree_.is_live(); }

  /// Observes a fact. Live: the result of `ask`, in a separate process, with a deadline. Otherwise the value recorded
  /// under this name. Runs once; later calls return the same answer.
  /// Errors  Those of `ask` and run_in_subprocess(); NOT_FOUND: not recorded.
  absl::StatusOr<std::string> observe(const std::string& name, const Ask& ask);

 private:
  absl::StatusOr<std::string> recorded(const std::string& path);

  Tree tree_;
  std::map<std::string, absl::StatusOr<std::string>> answers_;
};

}  // namespace gradrail::tools::doctor
