#include "worker/client/paths/return_decoder.h"

#include <cstring>
#include <vector>

#include "base/crc32c.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/optimizer/returns.h"
#include "ps/protocol/return_format.h"

namespace gradrail::worker {
namespace {

using ::testing::HasSubstr;

constexpr size_t kCount = 130;
constexpr ps::ElementRange kRange = {.first = 70, .count = kCount};

/// A bucket of 130 elements from element 70 on. The worker has answer 7: all elements are 2.
class ReturnDecoderTest : public ::testing::TestWithParam<ReturnFormat> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(decoder_.allocate(GetParam(), 200, {}).ok());
    const std::vector<float> twos(kCount, 2.0f);
    ps::round_to_bf16(twos, held_.data());
    std::memcpy(packed_.data(), held_.data(), kWhole);
    ASSERT_TRUE(unpack({.payload_bytes = kWhole, .answer = 7}, 0).ok());
    ASSERT_EQ(parameters_, twos);
  }
  /// Packs answer 8, in which two elements are new.
  ps::ReturnHeader next() {
    std::vector<float> values(kCount, 2.0f);
    values[1] = 3.0f;
    values[kCount - 1] = -5.0f;
    std::vector<uint16_t> stamps(kCount);
    ps::stamp_changes(values, 1, held_.data(), stamps.data());
    const size_t bytes = ps::pack_delta(held_, stamps.data(), 0, packed_.data());
    return {.payload_bytes = static_cast<uint32_t>(bytes), .answer = 8};
  }
  absl::Status unpack(const ps::ReturnHeader& header, uint32_t base) {
    return decoder_.unpack(header, base, packed_.data(), kRange, absl::MakeSpan(parameters_));
  }
  void expect_refused(const ps::ReturnHeader& header, uint32_t base, const std::string& why) {
    const absl::Status refused = unpack(header, base);
    EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(why));
    EXPECT_EQ(parameters_, std::vector<float>(kCount, 2.0f)) << "it has written";
  }

  static constexpr uint32_t kWhole = ps::whole_return_bytes(kCount);
  ReturnDecoder decoder_;
  std::vector<uint16_t> held_ = std::vector<uint16_t>(kCount);
  std::vector<float> parameters_ = std::vector<float>(kCount);
  std::vector<std::byte> packed_ = std::vector<std::byte>(ps::return_payload_at(0, 1, kCount) + ps::kMaskBlock);
};
class DeltaDecoderTest : public ReturnDecoderTest {};

TEST_P(DeltaDecoderTest, ADeltaChangesTheAnswerBeforeIt) {
  const ps::ReturnHeader header = next();
  // The program may write into its parameters.
  parameters_.assign(kCount, 9.0f);
  ASSERT_TRUE(unpack(header, 7).ok());
  std::vector<float> expected(kCount, 2.0f);
  expected[1] = 3.0f;
  expected[kCount - 1] = -5.0f;
  EXPECT_EQ(parameters_, expected);
}

TEST_P(DeltaDecoderTest, ADeltaToAnotherAnswerIsRefused) {
  ps::ReturnHeader header = next();
  for (const uint32_t base : {0u, 6u, 8u, 65543u}) expect_refused(header, base, "are a delta to answer 7");
  header.answer = 0;
  expect_refused(header, 65535, "are a delta to answer");
  header.answer = 1;
  expect_refused(header, 0, "are a delta to answer 65535");
  EXPECT_TRUE(unpack(header, 65535).ok());
}

TEST_P(ReturnDecoderTest, AWrongLengthIsRefused) {
  expect_refused({.payload_bytes = kWhole + 2, .answer = 8}, 7, "have 262 bytes, not 260");
  if (GetParam() == ReturnFormat::bf16) expect_refused({.payload_bytes = 24, .answer = 8}, 7, "have 24 bytes");
}

TEST_P(ReturnDecoderTest, AWrongChecksumIsRefused) {
  const bool is_delta = GetParam() == ReturnFormat::delta;
  ps::ReturnHeader header = is_delta ? next() : ps::ReturnHeader{.payload_bytes = kWhole};
  header.has_crc = 1;
  header.crc32c = crc32c(packed_.data(), header.payload_bytes);
  packed_[header.payload_bytes - 1] ^= std::byte{1};
  expect_refused(header, 7, "do not match their CRC32C");
  packed_[header.payload_bytes - 1] ^= std::byte{1};
  packed_[header.payload_bytes] ^= std::byte{1};  // behind the payload
  EXPECT_TRUE(unpack(header, 7).ok());
}

std::string name_of_format(const ::testing::TestParamInfo<ReturnFormat>& each) {
  return std::string(return_format_name(each.param));
}
INSTANTIATE_TEST_SUITE_P(Every, ReturnDecoderTest, ::testing::Values(ReturnFormat::bf16, ReturnFormat::delta),
                         name_of_format);
INSTANTIATE_TEST_SUITE_P(Every, DeltaDecoderTest, ::testing::Values(ReturnFormat::delta), name_of_format);

}  // namespace
}  // namespace gradrail::worker
