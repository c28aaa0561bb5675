#include "worker/publish/version_store.h"

#include <gtest/gtest.h>

#include <cstring>

namespace gradrail::publish {
namespace {

constexpr int64_t kElements = 4096;

/// A store with versions that differ in one element, or in all.
class PublishedVersions : public ::testing::Test {
 protected:
  void add(uint64_t version, float first, float others = 1.0f) {
    ASSERT_TRUE(store_.check_number(version).ok());
    std::shared_ptr<std::byte[]> bits = *store_.new_bits();
    std::vector<float> values(kElements, others);
    values.front() = first;
    std::memcpy(bits.get(), values.data(), store_.model().bytes());
    store_.add(version, 0, std::move(bits));
  }
  /// The hash of a version that is kept and has been encoded just now.
  Have encode() {
    EXPECT_TRUE(store_.encode_next());
    return *store_.stats().newest;
  }

  VersionStore store_{*Model::create(Format::fp32, {{"w", {kElements}}}), 3};
};

TEST_F(PublishedVersions, a_reader_without_a_version_receives_all_bits_of_the_newest) {
  EXPECT_FALSE(store_.answer_for(std::nullopt, Follow::newest).has_value());
  add(4, 1);
  EXPECT_FALSE(store_.answer_for(std::nullopt, Follow::newest).has_value()) << "no version is encoded yet";
  encode();
  for (const Follow follow : {Follow::newest, Follow::each}) {
    const std::optional<Answer> answer = store_.answer_for(std::nullopt, follow);
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(answer->version, 4u);
    EXPECT_FALSE(answer->is_delta);
    EXPECT_EQ(answer->bytes(), store_.model().bytes());
  }
}

TEST_F(PublishedVersions, a_reader_of_a_kept_version_receives_deltas) {
  add(1, 1);
  const Have first = encode();
  add(2, 2);
  const Have second = encode();
  add(5, 3);
  const Have third = encode();
  const std::optional<Answer> newest = store_.answer_for(first, Follow::newest);
  ASSERT_TRUE(newest.has_value());
  EXPECT_TRUE(newest->is_delta);
  EXPECT_EQ(newest->version, 5u);
  EXPECT_EQ(newest->digest, third.digest);
  EXPECT_EQ(newest->pieces.size(), 2u);
  const std::optional<Answer> each = store_.answer_for(first, Follow::each);
  ASSERT_TRUE(each.has_value());
  EXPECT_EQ(each->version, 2u);
  EXPECT_EQ(each->digest, second.digest);
  EXPECT_FALSE(store_.answer_for(third, Follow::newest).has_value()) << "it has the newest version";
}

TEST_F(PublishedVersions, a_number_with_another_hash_is_another_version) {
  add(1, 1);
  Have have = encode();
  add(2, 2);
  encode();
  have.digest[0] ^= std::byte{1};
  EXPECT_FALSE(store_.answer_for(have, Follow::newest)->is_delta);
}

TEST_F(PublishedVersions, the_oldest_version_is_dropped) {
  add(1, 1);
  const Have first = encode();
  for (uint64_t version = 2; version <= 4; ++version) {
    EXPECT_TRUE(version == 2 || store_.answer_for(first, Follow::newest)->is_delta);
    add(version, static_cast<float>(version));
    encode();
  }
  EXPECT_EQ(store_.stats().kept, 3u);
  EXPECT_FALSE(store_.answer_for(first, Follow::newest)->is_delta);
  EXPECT_FALSE(store_.answer_for(first, Follow::each)->is_delta);
}

TEST_F(PublishedVersions, all_bits_are_sent_where_the_deltas_are_longer) {
  add(1, 1, 1.0f);
  const Have first = encode();
  add(2, 2, 3.7e-9f);
  encode();
  add(3, 2, -5.1e20f);
  encode();
  const std::optional<Answer> newest = store_.answer_for(first, Follow::newest);
  EXPECT_FALSE(newest->is_delta);
  const std::optional<Answer> each = store_.answer_for(first, Follow::each);
  EXPECT_TRUE(each->is_delta) << "its version is not the newest: only the delta exists";
  EXPECT_EQ(each->version, 2u);
}

TEST_F(PublishedVersions, numbers_increase) {
  add(7, 1);
  EXPECT_TRUE(absl::IsInvalidArgument(store_.check_number(7)));
  EXPECT_TRUE(absl::IsInvalidArgument(store_.check_number(6)));
  EXPECT_TRUE(store_.check_number(8).ok());
}

TEST_F(PublishedVersions, a_publisher_faster_than_the_encoder_drops_versions) {
  for (uint64_t version = 1; version <= 5; ++version) add(version, static_cast<float>(version));
  EXPECT_EQ(store_.stats().superseded, 2u);
  EXPECT_EQ(encode().version, 3u);
  EXPECT_EQ(encode().version, 4u);
  EXPECT_FALSE(store_.wait_encoded(Clock::now()));
  EXPECT_EQ(encode().version, 5u);
  EXPECT_TRUE(store_.wait_encoded(Clock::now()));
}

TEST_F(PublishedVersions, an_answer_keeps_its_bits) {
  add(1, 1);
  encode();
  const Answer answer = *store_.answer_for(std::nullopt, Follow::newest);
  for (uint64_t version = 2; version <= 6; ++version) {
    add(version, static_cast<float>(version));
    encode();
  }
  float first = 0;
  std::memcpy(&first, answer.pieces.front().bits.get(), sizeof(first));
  EXPECT_EQ(first, 1.0f);
}

TEST_F(PublishedVersions, stop_ends_the_encoder) {
  store_.stop();
  EXPECT_FALSE(store_.encode_next());
}

}  // namespace
}  // namespace gradrail::publish
