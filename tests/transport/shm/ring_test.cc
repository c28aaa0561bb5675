#include "transport/shm/ring.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "base/random.h"
#include "gradrail/clock.h"
#include "gtest/gtest.h"

namespace gradrail::transport::shm {
namespace {

using Kind = RingConsumer::Taken::Kind;

class RingTest : public ::testing::Test {
 protected:
  RingConsumer::Taken take() { return consumer_.take(absl::MakeSpan(buffer_)); }

  std::unique_ptr<Ring> ring_ = std::make_unique<Ring>();
  RingProducer producer_{ring_.get()};
  RingConsumer consumer_{ring_.get()};
  std::array<std::byte, kMaxMessageBytes> buffer_{};
};

/// Contents that differ from message to message and from byte to byte.
std::vector<std::byte> pattern(uint64_t number, size_t bytes) {
  std::vector<std::byte> message(bytes);
  for (size_t i = 0; i < bytes; ++i) message[i] = static_cast<std::byte>(number * 131 + i * 7 + (i >> 8));
  return message;
}

TEST_F(RingTest, ImmediatesStayInOrderOverManyLaps) {
  for (uint64_t i = 0; i < 5 * kRingEntries; ++i) {
    ASSERT_EQ(producer_.room_for(1), RingProducer::Room::available);
    producer_.publish_immediate(i * 0x9e3779b97f4a7c15ull);
    ASSERT_FALSE(consumer_.empty());
    const RingConsumer::Taken taken = take();
    ASSERT_EQ(taken.kind, Kind::immediate);
    ASSERT_EQ(taken.immediate, i * 0x9e3779b97f4a7c15ull);
    ASSERT_TRUE(consumer_.empty());
  }
}

TEST_F(RingTest, FullRefusesUntilOneIsTaken) {
  for (size_t i = 0; i < kRingEntries; ++i) {
    ASSERT_EQ(producer_.room_for(1), RingProducer::Room::available);
    producer_.publish_immediate(i);
  }
  EXPECT_EQ(producer_.room_for(1), RingProducer::Room::full);
  EXPECT_EQ(take().immediate, 0u);
  EXPECT_EQ(producer_.room_for(1), RingProducer::Room::available);
  EXPECT_EQ(producer_.room_for(2), RingProducer::Room::full);
  producer_.publish_immediate(kRingEntries);
  for (size_t i = 1; i <= kRingEntries; ++i) ASSERT_EQ(take().immediate, i);
  EXPECT_TRUE(consumer_.empty());
}

TEST_F(RingTest, MessagesOfEverySizeCrossTheEnd) {
  const uint64_t seed = static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  SCOPED_TRACE(seed);
  Random random(seed);
  for (uint64_t i = 0; i < 3000; ++i) {
    const size_t bytes =
        i < 4 ? std::array<size_t, 4>{0, 1, kEntryBodyBytes, kMaxMessageBytes}[i] : random.below(kMaxMessageBytes + 1);
    const std::vector<std::byte> sent = pattern(i, bytes);
    ASSERT_EQ(producer_.room_for(entries_for(bytes)), RingProducer::Room::available);
    producer_.publish_message(sent);
    const RingConsumer::Taken taken = take();
    ASSERT_EQ(taken.kind, Kind::message);
    ASSERT_EQ(taken.message_bytes, bytes);
    ASSERT_TRUE(std::equal(sent.begin(), sent.end(), buffer_.begin())) << "message " << i << " of " << bytes;
    ASSERT_TRUE(consumer_.empty());
  }
}

// The bytes of a message's later entries must never be taken for a sequence number.
TEST_F(RingTest, MessageBytesAreNotSequenceNumbers) {
  std::vector<std::byte> message(kMaxMessageBytes);
  for (uint64_t lap = 0; lap < 200; ++lap) {
    for (size_t i = 0; i + 8 <= message.size(); i += 8) {
      const uint64_t tempting = lap * entries_for(kMaxMessageBytes) + i / 8;
      std::memcpy(message.data() + i, &tempting, 8);
    }
    ASSERT_EQ(producer_.room_for(entries_for(message.size())), RingProducer::Room::available);
    producer_.publish_message(message);
    ASSERT_EQ(take().kind, Kind::message);
    ASSERT_EQ(take().kind, Kind::nothing);
  }
}

TEST_F(RingTest, TwoThreadsPassAMillionEntries) {
  constexpr uint64_t kEntries = 1000000;
  const TimePoint deadline = Clock::now() + std::chrono::seconds(50);
  std::thread producer([&] {
    for (uint64_t i = 0; i < kEntries;) {
      const size_t bytes = i % 16 == 0 ? i % 1000 : 0;
      if (producer_.room_for(entries_for(bytes)) != RingProducer::Room::available) {
        if (Clock::now() > deadline) return;
        std::this_thread::yield();  // the consumer may have no core of its own
        continue;
      }
      if (i % 16 == 0) {
        producer_.publish_message(pattern(i, bytes));
      } else {
        producer_.publish_immediate(i);
      }
      ++i;
    }
  });
  uint64_t next = 0;
  bool correct = true;
  while (next < kEntries && correct && Clock::now() < deadline) {
    const RingConsumer::Taken taken = take();
    if (taken.kind == Kind::nothing) {
      std::this_thread::yield();
      continue;
    }
    if (next % 16 == 0) {
      const std::vector<std::byte> expected = pattern(next, next % 1000);
      correct = taken.kind == Kind::message && taken.message_bytes == expected.size() &&
                std::equal(expected.begin(), expected.end(), buffer_.begin());
    } else {
      correct = taken.kind == Kind::immediate && taken.immediate == next;
    }
    ++next;
  }
  const bool all = next == kEntries;
  producer.join();
  EXPECT_TRUE(correct) << "entry " << next - 1;
  EXPECT_TRUE(all) << "stopped at entry " << next;
}

TEST_F(RingTest, HeadThatGoesBackIsNoticed) {
  for (size_t i = 0; i < 2 * kRingEntries; ++i) {
    ASSERT_EQ(producer_.room_for(1), RingProducer::Room::available);
    producer_.publish_immediate(i);
    if (i < kRingEntries) {
      ASSERT_EQ(take().immediate, i);
    }
  }
  ring_->head.store(1);
  EXPECT_EQ(producer_.room_for(1), RingProducer::Room::broken);
}

TEST_F(RingTest, ImpossibleEntriesAreNoticed) {
  producer_.publish_immediate(1);
  ring_->entries[0].sequence.store(2);  // of an entry that cannot be there yet
  EXPECT_EQ(take().kind, Kind::broken);
  ring_->entries[0].sequence.store(1);
  for (const uint64_t header : {uint64_t{0}, uint64_t{3}, uint64_t{255}}) {
    ring_->entries[0].header.store(header);
    EXPECT_EQ(take().kind, Kind::broken) << header;
  }
  for (const uint64_t bytes : {uint64_t{kMaxMessageBytes + 1}, uint64_t{0xffffffff}}) {
    ring_->entries[0].header.store(static_cast<uint64_t>(EntryKind::message) | bytes << 32);
    EXPECT_EQ(take().kind, Kind::broken) << bytes;
  }
}

TEST_F(RingTest, SleeperIsAnnouncedToTheProducer) {
  EXPECT_FALSE(producer_.consumer_sleeps());
  consumer_.announce_sleep();
  EXPECT_TRUE(consumer_.empty_after_announcing());
  producer_.publish_immediate(7);
  EXPECT_TRUE(producer_.consumer_sleeps());
  EXPECT_FALSE(consumer_.empty_after_announcing());
  consumer_.announce_awake();
  EXPECT_FALSE(producer_.consumer_sleeps());
}

}  // namespace
}  // namespace gradrail::transport::shm
