#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace gradrail::gpu {

/// A shared library that some hosts have. It stays loaded: NVIDIA's libraries run threads and exit handlers of their
/// own.
class Library {
 public:
  /// Opens the first of `names` that loads.
  /// Errors  NOT_FOUND: none does; the text has the reason for each.
  static absl::StatusOr<Library> open(absl::Span<const char* const> names);
  /// Calls open(), and then searches the folders where CUDA's toolkit and NVIDIA's Python wheels put libraries, in this
  /// order: $CUDA_HOME/lib64, /usr/local/cuda*/lib64, and nvidia/*/lib of the Python environments ($VIRTUAL_ENV,
  /// $CONDA_PREFIX, the user's, the host's). $GRADRAIL_CUDA_LIBRARIES, separated by colons, replaces these folders.
  /// Errors  NOT_FOUND: as open(); the text also lists the searched folders.
  static absl::StatusOr<Library> find(absl::Span<const char* const> names);

  /// Null when the library has no such symbol.
  void* symbol(const char* name) const;
  const std::string& name() const { return name_; }

 private:
  Library(void* handle, std::string name) : handle_(handle), name_(std::move(name)) {}
  void* handle_;
  // The one of `names` that loaded, or its path: versions of a library differ in it.
  std::string name_;
};

}  // namespace gradrail::gpu
