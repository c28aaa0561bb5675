#include "transport/rails/greeting.h"

#include <string>

#include "base/check.h"
#include "tests/fuzz/fuzz.h"

namespace gradrail::transport::rails {
namespace {

void try_greeting(absl::Span<const std::byte> bytes) {
  const absl::StatusOr<Greeting> greeting = Greeting::decode(bytes);
  if (!greeting.ok()) return fuzz::check_refusal(greeting.status(), absl::StatusCode::kInvalidArgument, "greeting");
  GRADRAIL_CHECK(greeting->id.size() == kBundleIdBytes);
  GRADRAIL_CHECK(greeting->lanes >= 1 && greeting->lanes <= kMaxLanes && greeting->lane < greeting->lanes);
  const std::string again = greeting->encode();
  GRADRAIL_CHECK(again == std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

}  // namespace
}  // namespace gradrail::transport::rails

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  gradrail::transport::rails::try_greeting({reinterpret_cast<const std::byte*>(data), bytes});
  return 0;
}
