#include "transport/wait_set.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>

#include "base/clock.h"

namespace gradrail::transport {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// A context with work and promises set by the test.
class FakeContext final : public Context {
 public:
  ~FakeContext() override { ::close(fd_); }

  std::string_view name() const override { return "fake"; }
  Capabilities capabilities() const override { return {}; }
  absl::StatusOr<std::unique_ptr<MemoryRegion>> register_memory(MemorySpan, Access) override { return unused(); }
  absl::StatusOr<std::string> listen(const std::string&) override { return unused(); }
  absl::StatusOr<Connection*> connect(const std::string&, TimePoint) override { return unused(); }
  void close(Connection*) override {}
  size_t poll(absl::Span<Completion> out) override {
    if (++polls == arrives_at_poll) ++work;
    uint64_t drained = 0;
    [[maybe_unused]] const ssize_t got = read(fd_, &drained, sizeof(drained));
    size_t count = 0;
    for (; count < out.size() && work > 0; --work) out[count++] = {.tag = tag};
    return count;
  }
  int wait_fd() const override { return fd_; }
  bool arm() override {
    ++arms;
    if (arrives_when_armed) arrive();
    return refused_arms == 0 || refused_arms-- == 0;
  }

  /// Action of another thread on a real context.
  void arrive() {
    ++work;
    const uint64_t one = 1;
    ASSERT_EQ(write(fd_, &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  }

  std::atomic<int> work = 0;
  int refused_arms = 0;
  int polls = 0;
  int arrives_at_poll = 0;
  bool arrives_when_armed = false;
  int arms = 0;
  uint64_t tag = 0;

 private:
  static absl::Status unused() { return absl::UnimplementedError("fake"); }
  int fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
};

TEST(WaitSet, empty_set_waits_until_the_deadline) {
  WaitSet waits({});
  std::array<Completion, 1> out;
  const TimePoint start = Clock::now();
  EXPECT_EQ(waits.wait(absl::MakeSpan(out), start + milliseconds(30)), 0u);
  EXPECT_GE(seconds_since(start), 0.03);
}

TEST(WaitSet, past_deadline_still_polls_once) {
  FakeContext context;
  context.work = 1;
  WaitSet waits({});
  waits.add(&context);
  std::array<Completion, 4> out;
  EXPECT_EQ(waits.wait(absl::MakeSpan(out), Clock::now() - seconds(1)), 1u);
  EXPECT_EQ(waits.wait(absl::MakeSpan(out), Clock::now() - seconds(1)), 0u);
}

TEST(WaitSet, does_not_block_when_arming_is_refused) {
  FakeContext context;
  context.refused_arms = 1;
  WaitSet waits({});
  waits.add(&context);
  std::array<Completion, 4> out;
  const TimePoint start = Clock::now();
  EXPECT_EQ(waits.wait(absl::MakeSpan(out), start + milliseconds(50)), 0u);
  EXPECT_GE(context.polls, 3) << "once at first, once after the refusal, once after blocking";
  EXPECT_EQ(context.arms, 2);
}

TEST(WaitSet, wake_before_the_wait_is_not_lost_and_counts_once) {
  FakeContext context;
  WaitSet waits({});
  waits.add(&context);
  std::array<Completion, 4> out;
  waits.wake();
  waits.wake();
  EXPECT_EQ(waits.wait(absl::MakeSpan(out), Clock::now() + hours(1)), 0u);
  const TimePoint again = Clock::now();
  EXPECT_EQ(waits.wait(absl::MakeSpan(out), again + milliseconds(30)), 0u);
  EXPECT_GE(seconds_since(again), 0.03) << "the second wake() was already answered";
}

TEST(WaitSet, wake_together_with_work_returns_the_work) {
  FakeContext context;
  WaitSet waits({});
  waits.add(&context);
  std::array<Completion, 4> out;
  context.arrive();
  waits.wake();
  EXPECT_EQ(waits.wait(absl::MakeSpan(out), Clock::now() + seconds(20)), 1u);
}

TEST(WaitSet, any_context_ends_the_wait) {
  std::array<FakeContext, 3> contexts;
  WaitSet waits({});
  for (size_t i = 0; i < contexts.size(); ++i) {
    contexts[i].tag = i;
    waits.add(&contexts[i]);
  }
  std::array<Completion, 4> out;
  for (size_t i = 0; i < contexts.size(); ++i) {
    std::thread other([&] {
      std::this_thread::sleep_for(milliseconds(5));  // so that the other blocks first, as a rule
      contexts[i].arrive();
    });
    ASSERT_EQ(waits.wait(absl::MakeSpan(out), Clock::now() + seconds(20)), 1u);
    EXPECT_EQ(out[0].tag, i);
    other.join();
  }
}

TEST(WaitSet, busy_context_does_not_starve_the_others) {
  std::array<FakeContext, 3> contexts;
  WaitSet waits({});
  for (size_t i = 0; i < contexts.size(); ++i) {
    contexts[i].tag = i;
    contexts[i].work = 1000;
    waits.add(&contexts[i]);
  }
  std::array<int, 3> served{};
  std::array<Completion, 1> out;
  for (int i = 0; i < 300; ++i) {
    ASSERT_EQ(waits.poll(absl::MakeSpan(out)), 1u);
    ++served.at(out[0].tag);
  }
  for (const int count : served) EXPECT_EQ(count, 100);
}

TEST(WaitSet, spins_as_long_as_the_policy_says_before_it_arms) {
  FakeContext context;
  context.arrives_when_armed = true;
  WaitSet waits({.spin = milliseconds(40)});
  waits.add(&context);
  EXPECT_EQ(waits.policy().spin, milliseconds(40));
  std::array<Completion, 4> out;
  const TimePoint start = Clock::now();
  EXPECT_EQ(waits.wait(absl::MakeSpan(out), start + hours(1)), 1u);
  EXPECT_GE(seconds_since(start), 0.04);
  EXPECT_GT(context.polls, 10);
  EXPECT_EQ(context.arms, 1) << "at the end, and none while spinning";
}

TEST(WaitSet, a_spin_ends_at_the_deadline) {
  FakeContext context;
  WaitSet waits({.spin = hours(1)});
  waits.add(&context);
  std::array<Completion, 4> out;
  EXPECT_EQ(waits.wait(absl::MakeSpan(out), Clock::now() + milliseconds(20)), 0u);
}

/// Spins in vain become rare: after each one, more waits block at once. Completions make them frequent again.
TEST(WaitSet, an_adaptive_policy_spins_only_while_that_pays) {
  FakeContext context;
  context.arrives_when_armed = true;  // a wait without a spin has two polls, and ends at once
  WaitSet waits({.spin = milliseconds(1), .adapts = true});
  waits.add(&context);
  std::array<Completion, 4> out;
  const auto polls_of_a_wait = [&] {
    const int before = context.polls;
    EXPECT_EQ(waits.wait(absl::MakeSpan(out), Clock::now() + hours(1)), 1u);
    return context.polls - before;
  };
  const auto waits_until_a_spin = [&] {
    int count = 0;
    while (polls_of_a_wait() <= 10) ++count;
    return count;
  };
  for (const int without : {0, 2, 4, 8, 16, 32, 64, 64}) EXPECT_EQ(waits_until_a_spin(), without);
  do {
    context.arrives_at_poll = context.polls + 5;  // only a spin has so many
  } while (polls_of_a_wait() < 5);
  for (const int without : {0, 16, 32}) EXPECT_EQ(waits_until_a_spin(), without);
}

TEST(WaitSet, brief_polls_look_at_all_contexts_and_often_at_the_last_source) {
  FakeContext first;
  FakeContext second;
  WaitSet waits({.spin = hours(1)});
  waits.add(&first);
  waits.add(&second);
  std::array<Completion, 4> out;
  second.tag = 2;
  second.work = 1;
  ASSERT_EQ(waits.poll(absl::MakeSpan(out)), 1u);
  const int polls_of_first = first.polls;
  second.arrives_at_poll = second.polls + 12;
  ASSERT_EQ(waits.poll_briefly(absl::MakeSpan(out)), 1u);
  EXPECT_EQ(out[0].tag, 2u);
  EXPECT_EQ(first.polls, polls_of_first + 1);
  first.work = 1;
  ASSERT_EQ(waits.poll_briefly(absl::MakeSpan(out)), 1u);
  EXPECT_EQ(out[0].tag, 0u);
  const int polls = first.polls + second.polls;
  EXPECT_EQ(waits.poll_briefly(absl::MakeSpan(out)), 0u);
  EXPECT_EQ(first.polls + second.polls, polls + 17);
}

TEST(WaitSet, without_a_spin_brief_polls_are_one) {
  FakeContext context;
  WaitSet waits({});
  waits.add(&context);
  std::array<Completion, 4> out;
  EXPECT_EQ(waits.poll_briefly(absl::MakeSpan(out)), 0u);
  EXPECT_EQ(context.polls, 1);
}

}  // namespace
}  // namespace gradrail::transport
