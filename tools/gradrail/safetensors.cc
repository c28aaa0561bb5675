#include "tools/gradrail/safetensors.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/little_endian.h"
#include "base/status.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "ps/checkpoint/file.h"

namespace gradrail::tools {
namespace {

constexpr std::string_view kMetadata = "__metadata__";

/// As the reference implementation.
constexpr uint64_t kLongestHeader = 100'000'000;
constexpr size_t kLengthBytes = 8;

absl::Status damaged(const std::string& path, std::string_view what) {
  return absl::DataLossError(fmt::format("file {}: is not a safetensors file, or is damaged: {}", path, what));
}

/// The length of the header, which the first bytes of a file state.
absl::StatusOr<uint64_t> header_bytes(const std::string& path, absl::Span<const std::byte> first, uint64_t file_bytes) {
  if (first.size() < kLengthBytes) return damaged(path, "it ends in its first 8 bytes");
  const auto length = load_le<uint64_t>(first.data());
  if (length > kLongestHeader || length > file_bytes - kLengthBytes)
    return damaged(path, fmt::format("its first 8 bytes are no length of a header ({})", length));
  return length;
}

uint64_t element_bytes(NamedArray::Type type) {
  return type == NamedArray::Type::float32 ? sizeof(float) : sizeof(int64_t);
}

/// The bytes that the shape implies; nothing if that is no number of 64 bits.
std::optional<uint64_t> bytes_of(const NamedArray& array) {
  uint64_t bytes = element_bytes(array.type);
  for (const int64_t dimension : array.shape) {
    if (dimension < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(dimension), &bytes)) return std::nullopt;
  }
  return bytes;
}

/// `numbers` are the bytes after the header.
absl::StatusOr<NamedArray> decode_array(const std::string& path, const std::string& name, const nlohmann::json& fields,
                                        absl::Span<const std::byte> numbers) {
  NamedArray array{.name = name};
  const auto type = fields.at("dtype").get<std::string>();
  if (type != "F32" && type != "I64") {
    return absl::InvalidArgumentError(
        fmt::format("file {}: array {} has the type {}: save it as float32 (F32)", path, name, type));
  }
  array.type = type == "F32" ? NamedArray::Type::float32 : NamedArray::Type::int64;
  array.shape = fields.at("shape").get<std::vector<int64_t>>();
  const auto offsets = fields.at("data_offsets").get<std::vector<uint64_t>>();
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > numbers.size())
    return damaged(path, fmt::format("array {} is not within the file", name));
  array.bytes = numbers.subspan(offsets[0], offsets[1] - offsets[0]);
  if (bytes_of(array) != array.bytes.size())
    return damaged(path, fmt::format("array {} has {} bytes, which is not its shape", name, array.bytes.size()));
  return array;
}

}  // namespace

absl::Status write_safetensors(const std::string& path, absl::Span<const NamedArray> arrays,
                               const std::map<std::string, std::string>& metadata) {
  // The order of the arrays in the file is that of their offsets. The order of the keys has no meaning.
  nlohmann::json header = {{kMetadata, metadata}};
  header[kMetadata]["format"] = "pt";
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

absl::StatusOr<SafetensorsFile> decode_safetensors(const std::string& path, std::vector<std::byte> content) {
  SafetensorsFile file;
  file.path = path;
  file.content = std::move(content);
  const absl::Span<const std::byte> bytes(file.content);
  GRADRAIL_ASSIGN_OR_RETURN(const uint64_t length, header_bytes(path, bytes, bytes.size()));
  const absl::Span<const std::byte> numbers = bytes.subspan(kLengthBytes + length);
  const auto* const text = reinterpret_cast<const char*>(bytes.data() + kLengthBytes);
  try {
    const nlohmann::json header = nlohmann::json::parse(text, text + length);
    for (const auto& [name, fields] : header.items()) {
      if (name == kMetadata) {
        file.metadata = fields.get<std::map<std::string, std::string>>();
        continue;
      }
      GRADRAIL_ASSIGN_OR_RETURN(NamedArray array, decode_array(path, name, fields, numbers));
      file.arrays.push_back(std::move(array));
    }
  } catch (const nlohmann::json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, …"
    const std::string_view text_of_error = error.what();
    return damaged(path, text_of_error.substr(text_of_error.find(' ') + 1));
  }
  std::sort(file.arrays.begin(), file.arrays.end(), [](const NamedArray& a, const NamedArray& b) {
    return std::pair(a.bytes.data(), a.bytes.size()) < std::pair(b.bytes.data(), b.bytes.size());
  });
  // The format permits neither gaps nor common bytes.
  size_t end = 0;
  for (const NamedArray& array : file.arrays) {
    if (array.bytes.data() != numbers.data() + end)
      return damaged(path, fmt::format("array {} has a gap before it, or overlaps another one", array.name));
    end += array.bytes.size();
  }
  if (end != numbers.size()) return damaged(path, fmt::format("{} bytes belong to no array", numbers.size() - end));
  return file;
}

absl::StatusOr<SafetensorsFile> read_safetensors(const std::string& path) {
  GRADRAIL_ASSIGN_OR_RETURN(ps::InputFile file, ps::InputFile::open(path, "file"));
  // The length first: a file of another format can have gigabytes.
  std::vector<std::byte> content(std::min<uint64_t>(file.bytes(), kLengthBytes));
  GRADRAIL_RETURN_IF_ERROR(file.read(content.data(), content.size()));
  GRADRAIL_RETURN_IF_ERROR(header_bytes(path, content, file.bytes()).status());
  content.resize(file.bytes());
  GRADRAIL_RETURN_IF_ERROR(file.read(&content[kLengthBytes], content.size() - kLengthBytes));
  return decode_safetensors(path, std::move(content));
}

}  // namespace gradrail::tools
