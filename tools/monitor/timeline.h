#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/file.h"
#include "gradrail/client.h"

namespace gradrail::tools {

/// The chief's file with the steps of all tasks (chrome_trace.h), whole or not there.
/// Threads  Owner thread of the client.
class Timeline {
 public:
  /// Creates the timeline. The first chief makes the file, so that a folder without write permission is detected before
  /// the run.
  /// Errors  Those of ReplacementFile.
  static absl::StatusOr<std::unique_ptr<Timeline>> create(const std::string& path, bool is_chief);

  /// Ends the timeline at the end of the run: the chief gathers the marks of all and writes; the others upload theirs.
  absl::Status finish(Client& client);

 private:
  explicit Timeline(std::string path) : path_(std::move(path)) {}
  absl::Status create_file();

  const std::string path_;
  std::unique_ptr<ReplacementFile> file_;
};

}  // namespace gradrail::tools
