// The side channel over a tcp context, with a plain tcp peer.
#include "transport/common/side_channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "transport/common/byte_codec.h"
#include "transport/tcp/context.h"

namespace gradrail::transport::common {
namespace {

using ::testing::ElementsAre;

std::unique_ptr<Context> open_tcp() {
  auto opened = tcp::open({.bind_host = "127.0.0.1"});
  EXPECT_TRUE(opened.ok()) << opened.status();
  return *std::move(opened);
}

struct User final : SideChannelUser {
  void on_side_channel_message(std::string_view message) override {
    messages.emplace_back(message);
    if (close_at_message) channel->close();
  }
  void on_side_channel_lost(const absl::Status& cause) override {
    lost = cause;
    was_open_at_loss = channel->is_open();
  }
  void on_side_channel_misused() override { misused = true; }

  std::optional<SideChannel> channel;
  std::vector<std::string> messages;
  absl::Status lost;
  bool was_open_at_loss = false;
  bool close_at_message = false;
  bool misused = false;
};

class CommonSideChannel : public ::testing::Test {
 protected:
  CommonSideChannel() {
    const auto address = channels_.listen("127.0.0.1:0");
    EXPECT_TRUE(address.ok()) << address.status();
    const auto connected = peer_->connect(*address, Clock::now() + std::chrono::seconds(20));
    EXPECT_TRUE(connected.ok()) << connected.status();
    connection_ = *connected;
    poll_until([&] { return user_.channel.has_value(); });
  }
  void say(std::string_view text) { EXPECT_TRUE(connection_->send(as_bytes(text)).ok()); }
  template <typename Done>
  void poll_until(const Done& done) {
    const TimePoint deadline = Clock::now() + std::chrono::seconds(20);
    while (!done()) {
      ASSERT_LT(Clock::now(), deadline);
      std::array<Completion, 4> out;
      const size_t count = peer_->poll(absl::MakeSpan(out));
      for (size_t i = 0; i < count; ++i) {
        if (out[i].kind == Completion::Kind::message) heard_ += as_text(out[i].message);
        peer_lost_ = peer_lost_ || out[i].kind == Completion::Kind::peer_lost;
      }
      channels_.poll([&](Connection* accepted) {
        user_.channel.emplace(channels_, accepted, SideChannel::Side::accepted, user_, Clock::now());
      });
      if (count == 0) std::this_thread::yield();
    }
  }

  SideChannels channels_{open_tcp()};
  std::unique_ptr<Context> peer_ = open_tcp();
  Connection* connection_ = nullptr;
  User user_;
  std::string heard_;
  bool peer_lost_ = false;
};

TEST_F(CommonSideChannel, messages_pass_in_both_directions) {
  say("one");
  say("two");
  poll_until([&] { return user_.messages.size() == 2; });
  EXPECT_THAT(user_.messages, ElementsAre("one", "two"));
  EXPECT_TRUE(user_.channel->send("three").ok());
  poll_until([&] { return heard_ == "three"; });
  EXPECT_EQ("tcp " + user_.channel->ends(), [&] {
    const std::string text = connection_->describe();  // "tcp a > b" as the peer sees it
    const size_t arrow = text.find(" > ");
    return "tcp " + text.substr(arrow + 3) + " > " + text.substr(4, arrow - 4);
  }());
}

TEST_F(CommonSideChannel, is_closed_when_its_user_receives_the_loss) {
  say("last");
  peer_->close(connection_);
  poll_until([&] { return !user_.lost.ok(); });
  EXPECT_THAT(user_.messages, ElementsAre("last")) << "sent before the loss";
  EXPECT_FALSE(user_.was_open_at_loss);
  EXPECT_EQ(user_.channel->send("x").code(), absl::StatusCode::kUnavailable);
}

TEST_F(CommonSideChannel, a_user_may_close_it_while_more_messages_wait) {
  user_.close_at_message = true;
  for (int i = 0; i < 10; ++i) say("x");
  poll_until([&] { return peer_lost_; });
  EXPECT_EQ(user_.messages.size(), 1u);
  EXPECT_TRUE(user_.lost.ok()) << "reported after close";
}

TEST_F(CommonSideChannel, puts_are_misuse) {
  ASSERT_TRUE(connection_->put({}, {}, {.immediate = 1}).ok());
  poll_until([&] { return user_.misused; });
}

TEST_F(CommonSideChannel, an_accepted_connection_is_introduced_once) {
  EXPECT_FALSE(user_.channel->introduced());
  EXPECT_TRUE(user_.channel->introduce());
  EXPECT_FALSE(user_.channel->introduce());
  EXPECT_TRUE(user_.channel->introduced());
}

TEST_F(CommonSideChannel, a_busy_loop_polls_seldom_and_a_woken_one_at_once) {
  channels_.poll([](Connection*) {});
  EXPECT_FALSE(channels_.due()) << "just polled";
  while (channels_.arm() == false) channels_.poll([](Connection*) {});
  EXPECT_TRUE(channels_.due()) << "an event may have ended the wait";
  channels_.poll([](Connection*) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  int turns = 1;
  while (!channels_.due()) ++turns;
  EXPECT_LE(turns, 64);
}

}  // namespace
}  // namespace gradrail::transport::common
