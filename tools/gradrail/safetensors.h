#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tools/gradrail/named_array.h"

namespace gradrail::tools {

/// Writes a file that safetensors.torch.load_file() reads as a dictionary of tensors; it replaces `path` as a whole.
/// Errors  INVALID_ARGUMENT: the format reserves the name of an array. Else those of ReplacementFile.
/// Source  https://github.com/huggingface/safetensors, section Format of its README.
absl::Status write_safetensors(const std::string& path, absl::Span<const NamedArray> arrays);

}  // namespace gradrail::tools
