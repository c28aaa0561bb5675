#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"

/// The entry point of a decoder's source, with the name that libFuzzer calls. The replay test compiles each source with
/// a name of its own.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes);

namespace gradrail::fuzz {

inline std::string_view text_of(const uint8_t* data, size_t bytes) {
  return {reinterpret_cast<const char*>(data), bytes};
}
inline absl::Span<const std::byte> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

/// Whether a terminal can show the text: ASCII without control characters.
bool is_printable(std::string_view text);

/// Stops the process unless `status` is an error with this code, and its text contains `object`.
void check_refusal(const absl::Status& status, absl::StatusCode code, std::string_view object);

/// A file in memory, for decoders that open a path. Its owner replaces the content for each input.
class MemoryFile {
 public:
  MemoryFile();
  ~MemoryFile() { close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  const std::string& path() const { return path_; }
  int descriptor() const { return descriptor_; }
  void assign(std::string_view content);

 private:
  int descriptor_;
  std::string path_;
};

/// A folder in memory that ends with the process.
class MemoryFolder {
 public:
  MemoryFolder();
  ~MemoryFolder();
  MemoryFolder(const MemoryFolder&) = delete;
  MemoryFolder& operator=(const MemoryFolder&) = delete;

  const std::string& path() const { return path_; }
  /// Makes the folders above `name`, and `name` a link to the file.
  void link(const std::string& name, const MemoryFile& file);

 private:
  std::string path_;
};

}  // namespace gradrail::fuzz
