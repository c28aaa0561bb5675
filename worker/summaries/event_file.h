#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/file_descriptor.h"

namespace gradrail::worker {

/// Tag and value.
using Scalars = std::vector<std::pair<std::string, double>>;

/// An operation or a variable of a model.
struct GraphNode {
  std::string name;                 ///< unique; TensorBoard folds the names with a common part before a slash
  std::string op;                   ///< name in TensorFlow: "MatMul"
  std::vector<std::string> inputs;  ///< names of nodes
  std::vector<int64_t> shape;       ///< shape of a variable or a placeholder; empty: another node
};

/// A file of events as TensorBoard reads it, also while it grows: a TFRecord file, in each record an Event.
/// Errors  name the path, the failing call and errno's words. RESOURCE_EXHAUSTED: no space, also for a folder.
/// Threads One owner.
class EventFile {
 public:
  /// Makes the folder where it is missing, and in it a file with a unique name:
  /// events.out.tfevents.<seconds since 1970>.<host>.<pid>
  static absl::StatusOr<EventFile> create(const std::string& folder);

  const std::string& path() const { return path_; }
  /// Writes one event with the current time; it is in the file when this returns. After an error the file may end
  /// within a record, and nothing more must be written.
  absl::Status write(int64_t step, const Scalars& scalars);
  /// A run begins here, or begins again: TensorBoard drops what older files, and this one, have of this step and later.
  absl::Status write_start(int64_t step);
  /// Writes one event with the model, for TensorBoard's tab "Graphs"; once in a file.
  absl::Status write(absl::Span<const GraphNode> nodes);

 private:
  EventFile(std::string path, FileDescriptor descriptor) : path_(std::move(path)), descriptor_(std::move(descriptor)) {}
  absl::Status append(const std::string& event);

  std::string path_;
  FileDescriptor descriptor_;
};

}  // namespace gradrail::worker
