#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace gradrail::tools::doctor {

/// The system that is examined: its files, and the answers of its libraries.
class System {
 public:
  using Ask = std::function<absl::StatusOr<std::string>()>;
  /// Returns the answer of this name.
  using Observe = std::function<absl::StatusOr<std::string>(const std::string& name, const Ask& ask)>;

  /// The running system.
  System();
  /// Files below another root, and answers of another origin, for tests.
  System(std::string root, Observe observe) : root_(std::move(root)), observe_(std::move(observe)) {}

  // Paths begin with '/' and are the system's own, root left out.

  /// The path below the root.
  std::string file(const std::string& path) const { return root_ + path; }
  /// The content of a file; "" when it cannot be read.
  std::string text(const std::string& path) const;
  /// The first line, spaces at its ends removed, as printable(); "" when there is none.
  std::string line(const std::string& path) const;
  std::optional<uint64_t> number(const std::string& path, int base = 10) const;
  /// Names in a folder, sorted; none when it cannot be read.
  std::vector<std::string> names(const std::string& folder) const;
  bool exists(const std::string& path) const;
  bool is_folder(const std::string& path) const;
  /// Target of a link, as stored in it; "" if it is none.
  std::string link(const std::string& path) const;
  /// The last part of that: the kernel writes what belongs together as links, driver ->
  /// ../../bus/pci/drivers/mlx5_core.
  std::string link_name(const std::string& path) const;

  /// The result of `ask`, in a separate process, with a deadline: a library that crashes or blocks must not end the
  /// report.
  /// Errors  Those of `ask` and run_in_subprocess().
  absl::StatusOr<std::string> observe(const std::string& name, const Ask& ask) const { return observe_(name, ask); }

 private:
  std::string root_;
  Observe observe_;
};

}  // namespace gradrail::tools::doctor
