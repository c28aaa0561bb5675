#include <array>

#include "conformance/pattern.h"
#include "conformance/target.h"

namespace gradrail::conformance {
namespace {

std::string pattern_text(size_t bytes, uint64_t seed) {
  std::string text(bytes, '\0');
  fill_pattern({reinterpret_cast<std::byte*>(text.data()), bytes}, seed);
  return text;
}

std::vector<size_t> message_sizes(size_t limit) {
  std::vector<size_t> sizes = {0, 1, 2, 63, 64, 65, 127, 128, 1000, limit - 1, limit};
  std::erase_if(sizes, [&](size_t size) { return size > limit; });
  return sizes;
}

TEST_P(Conformance, messages_of_all_sizes_arrive_in_order) {
  constexpr uint64_t kRounds = 200;
  const auto peer = start_peer(GetParam(), [](Side& side, Channel& channel) {
    Connection* connection = side.connect(channel.receive());
    const std::vector<size_t> sizes = message_sizes(side.context().capabilities().max_message_bytes);
    for (uint64_t i = 0; i < kRounds * sizes.size(); ++i)
      side.send(connection, pattern_text(sizes[i % sizes.size()], i));
    side.serve_until_stopped(channel);
  });
  Side side(*GetParam().transport);
  ASSERT_GE(side.context().capabilities().max_message_bytes, 64u) << "too small to say anything";
  const std::vector<size_t> sizes = message_sizes(side.context().capabilities().max_message_bytes);
  peer->channel().send(side.listen());
  for (uint64_t i = 0; i < kRounds * sizes.size(); ++i) {
    ASSERT_TRUE(side.await(Kind::message).message == pattern_text(sizes[i % sizes.size()], i)) << "message " << i;
  }
  peer->channel().send("end");
  peer->join();
}

TEST_P(Conformance, too_large_message_is_invalid_and_harms_nothing) {
  const auto peer = start_peer(GetParam(), [](Side& side, Channel& channel) {
    Connection* connection = side.connect(channel.receive());
    const size_t limit = side.context().capabilities().max_message_bytes;
    for (const size_t bytes : {limit + 1, 2 * limit, limit + (size_t{1} << 20)}) {
      EXPECT_EQ(connection->send(bytes_of(std::string(bytes, 'x'))).code(), absl::StatusCode::kInvalidArgument)
          << bytes;
    }
    side.send(connection, "small enough");
    side.serve_until_stopped(channel);
  });
  Side side(*GetParam().transport);
  peer->channel().send(side.listen());
  EXPECT_EQ(side.await(Kind::message).message, "small enough");
  peer->channel().send("end");
  peer->join();
}

// A poll with room for one completion must neither lose nor reorder, nor hand out a message that it overwrites.
TEST_P(Conformance, polling_one_completion_at_a_time_loses_nothing) {
  constexpr uint64_t kCount = 300;
  const auto peer = start_peer(GetParam(), [](Side& side, Channel& channel) {
    const Target target = reach(side, channel);
    for (uint64_t i = 0; i < kCount; ++i) {
      side.send(target.connection, pattern_text(40, i));
      side.put(target.connection, {}, {target.region, 0}, {.immediate = i});
    }
    side.serve_until_stopped(channel);
  });
  Side side(*GetParam().transport);
  announce(side, *peer, side.buffer(8, Access::remote_write));
  side.accept();
  const std::deque<Event> earlier = side.log();
  uint64_t messages = 0, notices = 0;
  const auto check = [&](Kind kind, std::string_view message, uint64_t immediate) {
    if (kind == Kind::message) {
      ASSERT_EQ(message, pattern_text(40, messages++));
    }
    if (kind == Kind::put_arrived) {
      ASSERT_EQ(immediate, notices++);
    }
  };
  for (const Event& event : earlier) check(event.kind, event.message, event.immediate);
  const TimePoint deadline = Clock::now() + timeout();
  while (messages + notices < 2 * kCount && !HasFailure()) {
    ASSERT_LT(Clock::now(), deadline) << messages << " messages and " << notices << " notices of " << kCount;
    std::array<Completion, 1> one;
    if (side.context().poll(absl::MakeSpan(one)) == 0) continue;
    const auto* text = reinterpret_cast<const char*>(one[0].message.data());
    check(one[0].kind, {text, one[0].message.size()}, one[0].immediate);
  }
  peer->channel().send("end");
  peer->join();
}

}  // namespace
}  // namespace gradrail::conformance
