#include "transport/tcp/frame.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "base/crc32c.h"
#include "base/random.h"
#include "transport/tcp/send_queue.h"

namespace gradrail::transport::tcp {
namespace {

const FrameHeader kPut = {.type = FrameType::put,
                          .notify = true,
                          .region = 7,
                          .epoch = 3,
                          .token = 0x1122334455667788,
                          .offset = 0x99aabbccddeeff00,
                          .length = 4096,
                          .value = 0xfedcba9876543210};

TEST(TcpFrame, RoundTrip) {
  for (const FrameType type : {FrameType::hello, FrameType::put, FrameType::message, FrameType::get_request,
                               FrameType::get_data, FrameType::refusal}) {
    FrameHeader header = kPut;
    header.type = type;
    header.notify = type == FrameType::put;
    header.length = type == FrameType::hello ? 0 : 512;
    const absl::StatusOr<FrameHeader> back = decode(encode(header));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->type, header.type);
    EXPECT_EQ(back->notify, header.notify);
    EXPECT_EQ(back->region, header.region);
    EXPECT_EQ(back->epoch, header.epoch);
    EXPECT_EQ(back->token, header.token);
    EXPECT_EQ(back->offset, header.offset);
    EXPECT_EQ(back->length, header.length);
    EXPECT_EQ(back->value, header.value);
  }
}

TEST(TcpFrame, LayoutIsLittleEndianAndFixed) {
  const HeaderBytes bytes = encode(kPut);
  EXPECT_EQ(bytes[0], std::byte{'g'});
  EXPECT_EQ(bytes[1], std::byte{'R'});
  EXPECT_EQ(bytes[2], std::byte{2});
  EXPECT_EQ(bytes[8], std::byte{7});
  EXPECT_EQ(bytes[16], std::byte{0x88});
  EXPECT_EQ(bytes[33], std::byte{0x10});
  EXPECT_EQ(bytes[47], std::byte{0xfe});
}

TEST(TcpFrame, EveryDamagedBitIsSeen) {
  const HeaderBytes good = encode(kPut);
  for (size_t bit = 0; bit < kHeaderBytes * 8; ++bit) {
    HeaderBytes bad = good;
    bad[bit / 8] ^= std::byte{static_cast<uint8_t>(1U << (bit % 8))};
    EXPECT_FALSE(decode(bad).ok()) << "bit " << bit;
  }
}

HeaderBytes with_crc(HeaderBytes bytes) {
  const uint32_t crc = crc32c(bytes.data() + 8, kHeaderBytes - 8, crc32c(bytes.data(), 4));
  std::memcpy(&bytes[4], &crc, sizeof(crc));
  return bytes;
}

TEST(TcpFrame, ValidCrcDoesNotMakeContentValid) {
  ASSERT_TRUE(decode(with_crc(encode(kPut))).ok());
  for (const uint8_t type : {0, 8, 255}) {
    HeaderBytes bytes = encode(kPut);
    bytes[2] = std::byte{type};
    EXPECT_EQ(decode(with_crc(bytes)).status().code(), absl::StatusCode::kDataLoss) << int{type};
  }
  HeaderBytes flags = encode(kPut);
  flags[3] = std::byte{3};
  EXPECT_FALSE(decode(with_crc(flags)).ok());

  EXPECT_FALSE(decode(encode({.type = FrameType::message, .notify = true, .length = 1})).ok());
  EXPECT_FALSE(decode(encode({.type = FrameType::hello, .length = 1})).ok());
  EXPECT_FALSE(decode(encode({.type = FrameType::put, .length = kMaxFramePayloadBytes + 1})).ok());
  EXPECT_FALSE(decode(encode({.type = FrameType::message, .length = kMaxMessageBytes + 1})).ok());
  EXPECT_FALSE(decode(encode({.type = FrameType::refusal, .length = kMaxRefusalBytes + 1})).ok());
  EXPECT_FALSE(decode(encode({.type = FrameType::get_data, .length = UINT64_MAX})).ok());
}

TEST(TcpFrame, LongReasonIsCut) {
  const std::string frame = refusal_frame(std::string(5000, 'x'));
  EXPECT_EQ(frame.size(), kHeaderBytes + kMaxRefusalBytes);
}

// The queue, without a socket: takes `step` bytes at a time and gives the whole stream.
std::string drain(SendQueue& queue, uint64_t step_bytes, std::vector<uint64_t>& done_tags) {
  std::string stream;
  while (!queue.empty()) {
    uint64_t left = step_bytes;
    for (const iovec& piece : queue.gather(1 << 20)) {
      const uint64_t bytes = std::min<uint64_t>(left, piece.iov_len);
      stream.append(static_cast<const char*>(piece.iov_base), bytes);
      left -= bytes;
    }
    queue.consume(step_bytes - left, [&](const SendOp& op) { done_tags.push_back(op.tag); });
  }
  return stream;
}

std::vector<FrameHeader> frames_of(const std::string& stream) {
  std::vector<FrameHeader> frames;
  for (size_t at = 0; at < stream.size();) {
    HeaderBytes bytes;
    std::memcpy(bytes.data(), stream.data() + at, kHeaderBytes);
    const absl::StatusOr<FrameHeader> frame = decode(bytes);
    EXPECT_TRUE(frame.ok()) << frame.status() << " at " << at;
    if (!frame.ok()) break;
    frames.push_back(*frame);
    at += kHeaderBytes + frame->payload_bytes();
  }
  return frames;
}

void fill(SendQueue& queue, const std::vector<std::byte>& memory) {
  queue.push({.header = {.type = FrameType::put, .notify = true, .length = memory.size(), .value = 5},
              .source = memory.data(),
              .tag = 1});
  queue.push({.header = {.type = FrameType::get_data, .length = 300'000}, .source = memory.data(), .tag = 2});
  queue.push({.header = {.type = FrameType::message, .length = 3}, .tag = 3, .body = "abc"});
  queue.push({.header = {.type = FrameType::put, .notify = true, .value = 6}, .tag = 4});
  queue.push({.header = {.type = FrameType::get_request, .length = 1 << 30}, .tag = 5});
}

TEST(TcpSendQueue, StreamDoesNotDependOnHowItIsTaken) {
  const std::vector<std::byte> memory(700'000, std::byte{42});
  std::vector<uint64_t> tags;
  SendQueue queue;
  fill(queue, memory);
  const std::string whole = drain(queue, UINT32_MAX, tags);
  EXPECT_EQ(tags, (std::vector<uint64_t>{3, 5, 2, 1, 4}));
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  Random random(seed);
  for (int round = 0; round < 20; ++round) {
    std::vector<uint64_t> again;
    fill(queue, memory);
    EXPECT_TRUE(drain(queue, 1 + random.below(round < 10 ? 40'000 : 600'000), again) == whole);  // too long to print
    EXPECT_EQ(again, tags);
  }
}

TEST(TcpSendQueue, PutIsCutAndOnlyItsLastFrameNotifies) {
  const std::vector<std::byte> memory(2 * kMaxFramePayloadBytes + 1);
  std::vector<uint64_t> tags;
  SendQueue queue;
  queue.push({.header = {.type = FrameType::put, .notify = true, .offset = 100, .length = memory.size(), .value = 5},
              .source = memory.data()});
  const std::vector<FrameHeader> frames = frames_of(drain(queue, 1000, tags));
  ASSERT_EQ(frames.size(), 3U);
  EXPECT_FALSE(frames[0].notify || frames[1].notify);
  EXPECT_TRUE(frames[2].notify);
  EXPECT_EQ(frames[2].offset, 100 + 2 * kMaxFramePayloadBytes);
  EXPECT_EQ(frames[2].length, 1U);
}

TEST(TcpSendQueue, MessageWaitsForNoMoreThanTheBegunFrame) {
  const std::vector<std::byte> memory(8 * kMaxFramePayloadBytes);
  SendQueue queue;
  queue.push({.header = {.type = FrameType::put, .length = memory.size()}, .source = memory.data()});
  queue.gather(UINT32_MAX);
  queue.consume(100, [](const SendOp&) {});
  EXPECT_EQ(queue.rest_of_begun_frame(false).size(), kMaxFramePayloadBytes + kHeaderBytes - 100);
  queue.push({.header = {.type = FrameType::message, .length = 3}, .body = "abc"});
  const absl::Span<const iovec> pieces = queue.gather(UINT32_MAX);
  ASSERT_GE(pieces.size(), 3U);
  HeaderBytes second;
  std::memcpy(second.data(), pieces[1].iov_base, kHeaderBytes);
  EXPECT_EQ(decode(second)->type, FrameType::message);
}

TEST(TcpSendQueue, AnswersAndPutsTakeTurns) {
  const std::vector<std::byte> memory(4 * kMaxFramePayloadBytes);
  std::vector<uint64_t> tags;
  SendQueue queue;
  queue.push({.header = {.type = FrameType::put, .length = memory.size()}, .source = memory.data()});
  queue.push({.header = {.type = FrameType::get_data, .length = memory.size()}, .source = memory.data()});
  const std::vector<FrameHeader> frames = frames_of(drain(queue, 300'000, tags));
  ASSERT_EQ(frames.size(), 8U);
  for (size_t i = 1; i < frames.size(); ++i) EXPECT_NE(frames[i].type, frames[i - 1].type) << i;
}

}  // namespace
}  // namespace gradrail::transport::tcp
