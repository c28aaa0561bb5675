#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gradrail::tools::doctor {

/// The result of reading a file.
struct FileText {
  std::string text;
  int error = 0;  ///< errno; 0: read

  bool ok() const { return error == 0; }
};

/// A system's files in the view of the checks: those below a root, of the running system ("") or of one that was
/// recorded.
/// For any tree: links are followed inside the root and nowhere else, only regular files are opened, nothing
/// long is read whole and nothing waits.
/// Threads  One.
class Tree {
 public:
  /// Opens the tree. NOT_FOUND: the root is not a folder.
  static absl::StatusOr<Tree> open(const std::string& root);

  /// Copies what is read from now on to a folder, at the same paths, so that it answers as this tree did.
  /// Errors  ALREADY_EXISTS: there is something in it. FAILED_PRECONDITION: it cannot be made.
  absl::Status record_to(const std::string& folder);

  /// Whether these are the running system's files.
  bool is_live() const { return root_.empty(); }

  // Paths begin with '/' and are the system's own, root left out.

  FileText read(const std::string& path);
  /// The first line, spaces at its ends removed, as printable(); "" when there is none.
  std::string line(const std::string& path);
  std::optional<uint64_t> number(const std::string& path, int base = 10);
  /// Names in a folder, sorted; none when it cannot be read.
  std::vector<std::string> names(const std::string& folder);
  bool exists(const std::string& path);
  bool is_folder(const std::string& path);
  /// Target of a link, as stored in it; "" if it is none.
  std::string link(const std::string& path);
  /// The last part of that: the kernel writes what belongs together as links, driver ->
  /// ../../bus/pci/drivers/mlx5_core.
  std::string link_name(const std::string& path);

  /// Puts a file of ours into the recording, if there is one.
  void add_to_recording(const std::string& path, std::string_view text);

  /// Status of the recording: whether all files could be written.
  absl::Status recording() const { return recording_; }

 private:
  explicit Tree(std::string root) : root_(std::move(root)) {}

  struct Place {
    std::string path;  ///< path without links
    int error = 0;
  };
  Place resolve(const std::string& path, bool follow_last);
  void record_folder(const std::string& path);
  void record_link(const std::string& path, const std::string& target);
  bool make_room(const std::string& path);

  std::string root_;
  std::string record_;  ///< folder; "": nothing is recorded
  absl::Status recording_;
};

}  // namespace gradrail::tools::doctor
