#include "transport/rails/bundle_region.h"

#include "fmt/format.h"
#include "transport/common/byte_codec.h"
#include "transport/rails/greeting.h"

namespace gradrail::transport::rails {
namespace {

/// No key of one context begins so: tcp keys begin with a region index, those of ucx and ofi with their own magic.
constexpr std::string_view kKeysMagic = "\xffGRkeys1";
constexpr size_t kMaxKeyBytes = 4096;

}  // namespace

std::string join_keys(const std::vector<std::string>& keys) {
  if (keys.size() == 1) return keys[0];
  common::ByteWriter writer(kKeysMagic);
  writer.number(static_cast<uint16_t>(keys.size()));
  for (const std::string& key : keys) writer.text(key);
  return writer.take();
}

absl::StatusOr<std::string> key_of(std::string_view key, uint32_t child) {
  if (!key.starts_with(kKeysMagic)) return std::string(key);
  common::ByteReader reader(key.substr(kKeysMagic.size()));
  const auto count = reader.number<uint16_t>();
  if (count > kMaxRails || child >= count)
    return absl::InvalidArgumentError(fmt::format("a key of {} contexts has none of context {}", count, child));
  std::string found;
  for (uint32_t i = 0; i < count; ++i) {
    const std::string_view part = reader.text(kMaxKeyBytes);
    if (i == child) found = part;
  }
  if (!reader.complete()) return absl::InvalidArgumentError("a damaged key of several contexts");
  return found;
}

}  // namespace gradrail::transport::rails
