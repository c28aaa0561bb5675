#include "transport/rails/greeting.h"

#include <string>
#include <string_view>

#include "base/check.h"
#include "tests/fuzz/fuzz.h"
#include "transport/rails/bundle_region.h"

namespace gradrail::transport::rails {
namespace {

void try_greeting(absl::Span<const std::byte> bytes) {
  const absl::StatusOr<Greeting> greeting = Greeting::decode(bytes);
  if (!greeting.ok()) return fuzz::check_refusal(greeting.status(), absl::StatusCode::kInvalidArgument, "greeting");
  GRADRAIL_CHECK(greeting->id.size() == kBundleIdBytes);
  GRADRAIL_CHECK(greeting->lanes >= 1 && greeting->lanes <= kMaxLanes && greeting->lane < greeting->lanes);
  GRADRAIL_CHECK(greeting->child < kMaxRails);
  const std::string again = greeting->encode();
  GRADRAIL_CHECK(again == std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

void try_key(std::string_view key) {
  for (const uint32_t child : {0U, 1U, kMaxRails}) {
    const absl::StatusOr<std::string> part = key_of(key, child);
    if (!part.ok()) {
      fuzz::check_refusal(part.status(), absl::StatusCode::kInvalidArgument, "key");
    } else {
      GRADRAIL_CHECK(part->size() <= key.size());
    }
  }
}

}  // namespace
}  // namespace gradrail::transport::rails

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace gradrail::transport::rails;
  try_greeting({reinterpret_cast<const std::byte*>(data), bytes});
  try_key({reinterpret_cast<const char*>(data), bytes});
  return 0;
}
