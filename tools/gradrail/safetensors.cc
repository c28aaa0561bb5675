#include "tools/gradrail/safetensors.h"

#include <cstdint>

#include "base/little_endian.h"
#include "base/status.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "ps/checkpoint/file.h"

namespace gradrail::tools {
namespace {

constexpr std::string_view kMetadata = "__metadata__";

}  // namespace

absl::Status write_safetensors(const std::string& path, absl::Span<const NamedArray> arrays) {
  // The order of the arrays in the file is that of their offsets. The order of the keys has no meaning.
  nlohmann::json header = {{kMetadata, {{"format", "pt"}}}};
  uint64_t end = 0;
  for (const NamedArray& array : arrays) {
    if (array.name == kMetadata) {
      return absl::InvalidArgumentError(
          fmt::format("{}: the format reserves the name {}, which a tensor has: write a .npz file", path, kMetadata));
    }
    const uint64_t begin = end;
    end += array.bytes.size();
    header[array.name] = {{"dtype", array.type == NamedArray::Type::float32 ? "F32" : "I64"},
                          {"shape", array.shape},
                          {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  // Readers map the file: with these spaces the numbers begin at a multiple of 8.
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string prefix;
  append_le(prefix, static_cast<uint64_t>(text.size()));
  GRADRAIL_ASSIGN_OR_RETURN(ps::ReplacementFile file, ps::ReplacementFile::create(path, "file"));
  GRADRAIL_RETURN_IF_ERROR(file.write(prefix.data(), prefix.size()));
  GRADRAIL_RETURN_IF_ERROR(file.write(text.data(), text.size()));
  for (const NamedArray& array : arrays) GRADRAIL_RETURN_IF_ERROR(file.write(array.bytes.data(), array.bytes.size()));
  return file.commit();
}

}  // namespace gradrail::tools
