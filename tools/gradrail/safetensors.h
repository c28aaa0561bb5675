#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tools/gradrail/named_array.h"

namespace gradrail::tools {

/// Writes a file that safetensors.torch.load_file() reads as a dictionary of tensors; it replaces `path` as a whole.
/// Errors  INVALID_ARGUMENT: the format reserves the name of an array. Else those of ReplacementFile.
/// Source  https://github.com/huggingface/safetensors, section Format of its README.
absl::Status write_safetensors(const std::string& path, absl::Span<const NamedArray> arrays,
                               const std::map<std::string, std::string>& metadata);

struct SafetensorsFile {
  std::string path;
  std::map<std::string, std::string> metadata;
  std::vector<NamedArray> arrays;  ///< in the order of their bytes, which belong to `content`
  std::vector<std::byte> content;

  SafetensorsFile() = default;
  SafetensorsFile(SafetensorsFile&&) = default;  ///< a copy would refer to the bytes of the original
  SafetensorsFile& operator=(SafetensorsFile&&) = default;
};

/// Errors  INVALID_ARGUMENT names the array: another type than F32 and I64. DATA_LOSS describes the damage. Else those
///         of InputFile.
absl::StatusOr<SafetensorsFile> read_safetensors(const std::string& path);

/// The same from the bytes of a file; `path` is for the errors.
absl::StatusOr<SafetensorsFile> decode_safetensors(const std::string& path, std::vector<std::byte> content);

}  // namespace gradrail::tools
