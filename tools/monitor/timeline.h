#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "ps/checkpoint/file.h"
#include "worker/client/client.h"

namespace gradrail::tools {

/// The steps of all tasks as chrome://tracing and Perfetto draw them (Chrome's trace event format, JSON). It has a
/// process for each task, a row for each bucket. A mark without its end is left out.
std::string chrome_trace(const std::vector<worker::TaskTrace>& tasks);

/// The chief's file of that, whole or not there.
/// Threads  Owner thread of the client.
class Timeline {
 public:
  /// For the first chief makes the file, so that a folder that cannot be written to is known before the run.
  /// Errors  as ps::ReplacementFile.
  static absl::StatusOr<std::unique_ptr<Timeline>> create(const std::string& path, bool is_chief);

  /// At the end of the run the chief gathers the marks of all and writes; the others upload theirs.
  absl::Status finish(worker::Client& client);

 private:
  explicit Timeline(std::string path) : path_(std::move(path)) {}
  absl::Status create_file();

  const std::string path_;
  std::unique_ptr<ps::ReplacementFile> file_;
};

}  // namespace gradrail::tools
