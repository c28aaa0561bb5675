#include "transport/rails/greeting.h"

#include <string_view>

#include "fmt/format.h"
#include "transport/common/byte_codec.h"

namespace gradrail::transport::rails {
namespace {

constexpr std::string_view kGreetingMagic = "GRlanes2";

}  // namespace

std::string Greeting::encode() const {
  return common::ByteWriter(kGreetingMagic)
      .raw(id)
      .number(static_cast<uint16_t>(lane))
      .number(static_cast<uint16_t>(lanes))
      .number(mbit_per_s)
      .take();
}

absl::StatusOr<Greeting> Greeting::decode(absl::Span<const std::byte> message) {
  common::ByteReader reader(common::as_text(message));
  const bool is_greeting = reader.raw(kGreetingMagic.size()) == kGreetingMagic;
  Greeting greeting{.id = std::string(reader.raw(kBundleIdBytes))};
  greeting.lane = reader.number<uint16_t>();
  greeting.lanes = reader.number<uint16_t>();
  greeting.mbit_per_s = reader.number<uint32_t>();
  if (!is_greeting || !reader.complete())
    return absl::InvalidArgumentError("the first message of a lane is not a greeting");
  if (greeting.lanes == 0 || greeting.lanes > kMaxLanes || greeting.lane >= greeting.lanes)
    return absl::InvalidArgumentError(
        fmt::format("a greeting of lane {} of {} (at most {})", greeting.lane, greeting.lanes, kMaxLanes));
  return greeting;
}

}  // namespace gradrail::transport::rails
