#include "ps/shard/return_encoder.h"

#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "ps/protocol/return_format.h"

namespace gradrail::ps {
namespace {

constexpr size_t kCount = 256;
constexpr uint32_t kWhole = whole_return_bytes(kCount);
constexpr uint32_t kMasks = mask_bytes(kCount);

/// A shard of two buckets; the second one is used.
class ReturnEncoderTest : public ::testing::Test {
 protected:
  ReturnEncoder::Packed answer(ArrivalKind kind, uint32_t base, float first_value) {
    return answer(encoder_, kind, base, first_value);
  }
  ReturnEncoder::Packed answer(ReturnEncoder& encoder, ArrivalKind kind, uint32_t base, float first_value) {
    values_[0] = first_value;
    elements_.on_changed(1);
    encoder.on_arrival({.kind = kind, .bucket = 1, .base_answer = base});
    return encoder.pack(1, kCount, values_, packed_.data());
  }
  ReturnEncoder::Packed push(uint32_t base, float first_value) { return answer(ArrivalKind::push, base, first_value); }
  uint16_t element(size_t at) const {
    uint16_t value;
    std::memcpy(&value, &packed_[at], sizeof(value));
    return value;
  }

  ReturnEncoderTest() { elements_.reset(2, 2 * kCount); }

  ReturnedElements elements_;
  ReturnEncoder encoder_{ReturnFormat::delta, 2, elements_};
  std::vector<float> values_ = std::vector<float>(kCount, 2.0f);
  std::vector<std::byte> packed_ = std::vector<std::byte>(kWhole);
};

TEST_F(ReturnEncoderTest, ADeltaFollowsTheAnswerThatTheWorkerHas) {
  const ReturnEncoder::Packed first = push(0, 1.0f);
  EXPECT_EQ(first.bytes, kWhole);
  EXPECT_EQ(first.answer, 1);
  EXPECT_EQ(element(0), 0x3f80);
  const ReturnEncoder::Packed second = push(1, 1.5f);
  EXPECT_EQ(second.bytes, kMasks + 2);
  EXPECT_EQ(second.answer, 2);
  EXPECT_EQ(element(kMasks), 0x3fc0);
  EXPECT_EQ(push(2, 1.5f).bytes, kMasks) << "nothing has changed";
}

/// The push was repeated, or its answer belongs to another path.
TEST_F(ReturnEncoderTest, AnotherBaseGetsTheWholeBucket) {
  for (const uint32_t base : {0u, 1u, 3u, 65535u, 65538u}) {
    encoder_ = ReturnEncoder(ReturnFormat::delta, 2, elements_);
    push(0, 1.0f);
    push(1, 1.5f);
    const ReturnEncoder::Packed repeated = push(base, 1.75f);
    EXPECT_EQ(repeated.bytes, kWhole) << base;
    EXPECT_EQ(element(0), 0x3fe0) << base;
    EXPECT_EQ(push(repeated.answer, 1.0f).bytes, kMasks + 2) << base;
  }
}

/// A pull can be answered twice, and the second answer may arrive late.
TEST_F(ReturnEncoderTest, NoDeltaFollowsAnAnswerToAPull) {
  push(0, 1.0f);
  for (const ArrivalKind kind : {ArrivalKind::pull, ArrivalKind::initialise}) {
    const ReturnEncoder::Packed pulled = answer(kind, 1, 1.5f);
    EXPECT_EQ(pulled.bytes, kWhole);
    EXPECT_EQ(pulled.answer, 0);
    EXPECT_EQ(element(0), 0x3fc0);
    const ReturnEncoder::Packed next = push(0, 1.5f);
    EXPECT_EQ(next.bytes, kWhole);
    EXPECT_EQ(push(next.answer, 1.25f).bytes, kMasks + 2);
  }
}

TEST_F(ReturnEncoderTest, NumbersBeginAgainAt1) {
  uint32_t base = 0;
  for (int i = 0; i < 65535; ++i) base = push(base, 1.0f).answer;
  EXPECT_EQ(base, 65535u);
  const ReturnEncoder::Packed next = push(base, 1.5f);
  EXPECT_EQ(next.answer, 1);
  EXPECT_EQ(next.bytes, kMasks + 2);
}

TEST_F(ReturnEncoderTest, ManyChangesTravelAsTheWholeBucket) {
  push(0, 1.0f);
  values_.assign(kCount, 3.0f);
  EXPECT_EQ(push(1, 1.0f).bytes, kWhole);
  EXPECT_EQ(element(0), 0x3f80);
  EXPECT_EQ(element(2), 0x4040);
  EXPECT_EQ(push(2, 1.5f).bytes, kMasks + 2) << "the shard holds the whole answer";
}

/// Two paths share the elements. Each has a delta to what its own worker has.
TEST_F(ReturnEncoderTest, AWorkerThatIsBehindGetsAllChangesSinceItsOwnAnswer) {
  ReturnEncoder other(ReturnFormat::delta, 2, elements_);
  push(0, 1.0f);
  EXPECT_EQ(answer(other, ArrivalKind::push, 0, 1.0f).bytes, kWhole);
  values_[200] = 4.0f;
  EXPECT_EQ(push(1, 1.0f).bytes, kMasks + 2);
  values_[100] = 8.0f;
  EXPECT_EQ(push(2, 1.5f).bytes, kMasks + 4);
  EXPECT_EQ(push(3, 1.0f).bytes, kMasks + 2);
  const ReturnEncoder::Packed behind = answer(other, ArrivalKind::push, 1, 1.0f);
  EXPECT_EQ(behind.bytes, kMasks + 6) << "an element that has its old value again, and two new ones";
  EXPECT_EQ(behind.answer, 2) << "numbers belong to a path";
  EXPECT_EQ(element(kMasks), 0x3f80);
  EXPECT_EQ(element(kMasks + 2), 0x4100);
  EXPECT_EQ(element(kMasks + 4), 0x4080);
}

TEST_F(ReturnEncoderTest, ParametersWithoutAChangeAreNotRoundedAgain) {
  push(0, 1.0f);
  values_[0] = 1.5f;  // without on_changed()
  encoder_.on_arrival({.kind = ArrivalKind::push, .bucket = 1, .base_answer = 1});
  EXPECT_EQ(encoder_.pack(1, kCount, values_, packed_.data()).bytes, kMasks);
}

/// Stamps have 16 bits.
TEST_F(ReturnEncoderTest, NoDeltaLeadsFromAnEarlierPeriodOfStamps) {
  ReturnEncoder last(ReturnFormat::delta, 2, elements_);
  uint32_t base = 0;
  for (int i = 0; i < 65534; ++i) base = push(base, i % 2 == 0 ? 1.25f : 1.5f).answer;
  EXPECT_EQ(answer(last, ArrivalKind::push, 0, 1.5f).bytes, kWhole);
  EXPECT_EQ(answer(last, ArrivalKind::push, 1, 1.75f).bytes, kMasks + 2) << "from the content before the new period";
  const ReturnEncoder::Packed whole = push(base, 1.75f);
  EXPECT_EQ(whole.bytes, kWhole) << "one content earlier";
  EXPECT_EQ(element(0), 0x3fe0);
  EXPECT_EQ(push(whole.answer, 1.0f).bytes, kMasks + 2);
}

TEST_F(ReturnEncoderTest, InBf16EachAnswerIsWhole) {
  encoder_ = ReturnEncoder(ReturnFormat::bf16, 2, elements_);
  for (const uint32_t base : {0u, 1u}) {
    const ReturnEncoder::Packed packed = push(base, 1.0f);
    EXPECT_EQ(packed.bytes, kWhole);
    EXPECT_EQ(packed.answer, 0);
  }
}

}  // namespace
}  // namespace gradrail::ps
