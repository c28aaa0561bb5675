// A file of `gradrail checkpoint import`. The first byte of an input selects whether the file gets the right length of
// its header, which the rest of the input seldom has.
#include "tools/gradrail/safetensors.h"

#include "absl/types/span.h"
#include "base/check.h"
#include "base/little_endian.h"
#include "tests/fuzz/fuzz.h"
#include "transport/common/byte_codec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace gradrail;
  transport::common::ByteReader in(fuzz::text_of(data, bytes));
  std::string text;
  if (in.number<uint8_t>() % 2 == 1) {
    const std::string_view header = in.text(UINT16_MAX);
    append_le(text, uint64_t{header.size()});
    text += header;
  }
  text += in.rest();
  const auto* const first = reinterpret_cast<const std::byte*>(text.data());
  const auto file = tools::decode_safetensors("state", {first, first + text.size()});
  if (!file.ok()) {
    fuzz::check_refusal(file.status(), file.status().code(), "state");
    GRADRAIL_CHECK(absl::IsDataLoss(file.status()) || absl::IsInvalidArgument(file.status()));
    return 0;
  }
  // All numbers belong to exactly one array.
  const std::byte* end = nullptr;
  for (const tools::NamedArray& array : file->arrays) {
    GRADRAIL_CHECK(end == nullptr || array.bytes.data() == end);
    end = array.bytes.data() + array.bytes.size();
    uint64_t expected = array.type == tools::NamedArray::Type::float32 ? 4 : 8;
    for (const int64_t dimension : array.shape) expected *= static_cast<uint64_t>(dimension);
    GRADRAIL_CHECK(array.bytes.size() == expected);
  }
  GRADRAIL_CHECK(end == nullptr || end == file->content.data() + file->content.size());
  return 0;
}
