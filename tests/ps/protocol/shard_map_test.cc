#include "ps/protocol/shard_map.h"

#include <limits>
#include <string>

#include "base/random.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/protocol/exchange_layout.h"
#include "ps/protocol/push_format.h"
#include "ps/protocol/slot_places.h"

namespace gradrail::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kLineElements = 16;  // 64 bytes

TEST(ShardMap, DefaultBucketsAreASixteenthOfAShardBetweenTheirLimits) {
  const auto kib = [](uint64_t model_kib, uint32_t shards) {
    return ShardMap::default_bucket_bytes(model_kib * 1024 / sizeof(float), shards) / 1024;
  };
  EXPECT_EQ(kib(0, 1), 256u);
  EXPECT_EQ(kib(4096, 1), 256u);
  EXPECT_EQ(kib(4097, 1), 320u);  // a multiple of 64 KiB
  EXPECT_EQ(kib(8192, 1), 512u);
  EXPECT_EQ(kib(16384, 2), 512u);
  EXPECT_EQ(kib(uint64_t{1} << 30, 1), 1024u);
  for (const PushFormat push : {PushFormat{PushFormat::int4}, PushFormat{PushFormat::topk, 10}})
    EXPECT_TRUE(ShardMap::cut(3 << 20, 2, ShardMap::default_bucket_bytes(3 << 20, 2), push).ok());
}
constexpr uint64_t kMostElements = uint64_t{1} << 38;

std::string message(const absl::Status& status) { return std::string(status.message()); }

void expect_covers_exactly(const ShardMap& map) {
  uint64_t next = 0;
  for (uint32_t shard = 0; shard < map.shard_count(); ++shard) {
    const ElementRange range = map.shard(shard);
    ASSERT_EQ(range.first, next) << "gap or overlap before shard " << shard;
    uint64_t next_in_shard = range.first;
    for (uint32_t i = 0; i < map.bucket_count(shard); ++i) {
      const ElementRange bucket = map.bucket(shard, i);
      ASSERT_EQ(bucket.first, next_in_shard) << "shard " << shard << " bucket " << i;
      ASSERT_EQ((bucket.first - range.first) % kLineElements, 0u) << "shard " << shard << " bucket " << i;
      ASSERT_GT(bucket.count, 0u);
      ASSERT_LE(bucket.count, map.bucket_elements());
      ASSERT_TRUE(bucket.count == map.bucket_elements() || i + 1 == map.bucket_count(shard))
          << "only the last is short";
      next_in_shard += bucket.count;
    }
    next += range.count;
    ASSERT_EQ(next_in_shard, next) << "buckets of shard " << shard;
  }
  EXPECT_EQ(next, map.elements());
}

TEST(ShardMap, CoversExactlyAndEvenly) {
  for (const uint64_t elements : {0, 1, 15, 16, 17, 31, 32, 33, 79510, 100'000, 1'000'003}) {
    for (const uint32_t shard_count : {1, 2, 3, 7, 64}) {
      for (const uint32_t bucket_bytes : {64, 128, 4096, 1 << 20}) {
        SCOPED_TRACE(::testing::Message() << elements << " / " << shard_count << " / " << bucket_bytes);
        const absl::StatusOr<ShardMap> map = ShardMap::cut(elements, shard_count, bucket_bytes);
        ASSERT_TRUE(map.ok()) << map.status();
        EXPECT_EQ(map->elements(), elements);
        EXPECT_EQ(map->shard_count(), shard_count);
        EXPECT_EQ(map->bucket_elements(), bucket_bytes / sizeof(float));
        expect_covers_exactly(*map);
        if (testing::Test::HasFatalFailure()) return;
        // Even within one line, counted in whole lines: the last one of the model may be short.
        uint64_t least = UINT64_MAX;
        uint64_t most = 0;
        for (uint32_t i = 0; i < shard_count; ++i) {
          const uint64_t lines = (map->shard(i).count + kLineElements - 1) / kLineElements;
          least = std::min(least, lines);
          most = std::max(most, lines);
        }
        EXPECT_LE(most - least, 1u);
      }
    }
  }
}

TEST(ShardMap, ShardsShareNoLine) {
  const ShardMap map = ShardMap::cut(1003, 5, 64).value();
  for (uint32_t i = 0; i < 5; ++i) EXPECT_EQ(map.shard(i).first % kLineElements, 0u) << i;
}

TEST(ShardMap, ShardsAndBucketsBeginWithABlockOrChunk) {
  constexpr PushFormat kTopk5(PushFormat::topk, 50);
  for (const PushFormat push : {PushFormat(PushFormat::int8), PushFormat(PushFormat::int4), kTopk5}) {
    const uint64_t block = push == kTopk5 ? 4096 : 64;
    for (const uint64_t elements : {1, 64, 65, 1003, 4097, 100'000}) {
      for (const uint32_t shard_count : {1, 2, 5}) {
        const ShardMap map = ShardMap::cut(elements, shard_count, block * sizeof(float), push).value();
        uint64_t covered = 0;
        for (uint32_t i = 0; i < shard_count; ++i) {
          for (uint32_t j = 0; j < map.bucket_count(i); ++j) {
            EXPECT_EQ(map.bucket(i, j).first % block, 0u) << elements << " " << i << " " << j;
            covered += map.bucket(i, j).count;
          }
        }
        EXPECT_EQ(covered, elements);
      }
    }
    EXPECT_THAT(message(ShardMap::cut(1000, 1, 320, push).status()),
                HasSubstr(fmt::format("bucket size 320: must be a positive multiple of {} bytes with push {}",
                                      block * sizeof(float), push_format_name(push))));
  }
}

TEST(ShardMap, FewElementsLeaveTheLastShardsEmpty) {
  const ShardMap map = ShardMap::cut(17, 4, 64).value();
  EXPECT_EQ(map.shard(0), (ElementRange{0, 16}));
  EXPECT_EQ(map.shard(1), (ElementRange{16, 1}));
  for (const uint32_t empty : {2, 3}) {
    EXPECT_EQ(map.shard(empty), (ElementRange{17, 0}));
    EXPECT_EQ(map.bucket_count(empty), 0u);
  }
}

TEST(ShardMap, RefusesInvalidCuts) {
  for (const uint32_t bucket_bytes : {0, 1, 32, 63, 65, 100}) {
    const absl::Status status = ShardMap::cut(100, 1, bucket_bytes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bucket_bytes;
    EXPECT_THAT(message(status), HasSubstr(std::to_string(bucket_bytes)));
  }
  EXPECT_EQ(ShardMap::cut(100, 0, 64).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ShardMap, LargestModelAndBeyond) {
  const ShardMap largest = ShardMap::cut(kMostElements, 3, 1 << 20).value();
  EXPECT_EQ(largest.shard(2).first + largest.shard(2).count, kMostElements);
  EXPECT_EQ(ShardMap::cut(kMostElements, 1, 0xffffffc0).value().bucket_count(0), 257u);
  // Near 2^64 the number of lines once wrapped to zero and nothing was covered.
  for (const uint64_t elements : {kMostElements + 1, UINT64_MAX - 14, UINT64_MAX}) {
    EXPECT_EQ(ShardMap::cut(elements, 2, 64).status().code(), absl::StatusCode::kInvalidArgument) << elements;
  }
  // 2^34 buckets were once counted as 0.
  EXPECT_THAT(message(ShardMap::cut(kMostElements, 1, 64).status()), HasSubstr("more than 1048575 buckets"));
  EXPECT_TRUE(ShardMap::cut(kMostElements, 1, 2 << 20).ok());
}

TEST(Schema, ElementsOfATensor) {
  EXPECT_EQ((Tensor{"scalar", {}}.elements()), 1u);
  EXPECT_EQ((Tensor{"m", {784, 100}}.elements()), 78400u);
}

TEST(Schema, AcceptsValidSchemas) {
  EXPECT_TRUE(validate({{"w", {784, 100}}, {"b", {100}}, {"scale", {}}}).ok());
  EXPECT_TRUE(validate({{"w", {int64_t{1} << 38}}}).ok());
}

TEST(Schema, RefusesNamesAndDimensionsAndOverflow) {
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  const auto refusal = [](const Schema& schema) {
    const absl::Status status = validate(schema);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return message(status);
  };
  EXPECT_THAT(refusal({}), HasSubstr("no tensors"));
  EXPECT_THAT(refusal({{"", {1}}}), HasSubstr("without a name"));
  EXPECT_THAT(refusal({{"a", {1}}, {"b", {1}}, {"a", {2}}}), HasSubstr("'a'"));
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{0},
        {3, -1},
        {-2, -2},
        {kLargest},
        {kLargest, kLargest},
        {std::numeric_limits<int64_t>::min()},
        {int64_t{1} << 32, int64_t{1} << 32},        // 2^64 wraps to 0
        {(int64_t{1} << 32) + 1, int64_t{1} << 32},  // 2^64 + 2^32 wraps to something plausible
        {(int64_t{1} << 38) + 1}}) {
    EXPECT_THAT(refusal({{"fine", {2}}, {"odd", shape}}), HasSubstr("'odd'")) << ::testing::PrintToString(shape);
  }
  EXPECT_THAT(refusal({{"half", {int64_t{1} << 37}}, {"rest", {int64_t{1} << 37}}, {"more", {1}}}),
              HasSubstr("'more'"));
}

TEST(Schema, NamesAreUtf8) {
  for (const char* name : {"w", "größe", "重み", "\xF0\x9F\x90\xA2", "\xED\x9F\xBF", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_TRUE(validate({{"fine", {1}}, {name, {1}}}).ok()) << name;
  }
  for (const char* name : {"gr\xF6\xDF", "\x80", "cut\xC3", "\xE2\x82", "\xC0\xAF", "\xC1\xBF", "\xE0\x9F\xBF",
                           "\xED\xA0\x80", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF"}) {
    const absl::Status refused = validate({{"fine", {1}}, {name, {1}}});
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(message(refused), HasSubstr("tensor 1: its name is not UTF-8"));
  }
}

TEST(Schema, NamesFitIntoALine) {
  EXPECT_TRUE(validate({Tensor{std::string(1024, 'n'), {1}}}).ok());
  const auto refusal = [](const std::string& name) {
    return message(validate({Tensor{"fine", {1}}, Tensor{name, {1}}}));
  };
  EXPECT_THAT(refusal(std::string(1025, 'n')), HasSubstr("tensor 1: its name has 1025 bytes; the limit is 1024"));
  EXPECT_THAT(refusal("a\x1b[31m"), HasSubstr("tensor 1: its name 'a\\x1b[31m' contains a control character"));
  for (const char* name : {"a\nb", "\t", "\x7f"}) EXPECT_THAT(refusal(name), HasSubstr("control character"));
  EXPECT_THAT(refusal(std::string("a\0b", 3)), HasSubstr("'a\\x00b'"));
}

TEST(Schema, DifferenceIsForPeople) {
  const Schema ours = {{"w1", {784, 100}}, {"b1", {100}}};
  EXPECT_EQ(difference(ours, ours), "");
  EXPECT_EQ(difference(ours, {{"w1", {784, 100}}, {"b1", {128}}}), "tensor 1: 'b1' [100] here, 'b1' [128] there");
  EXPECT_EQ(difference(ours, {{"w", {784, 100}}, {"b1", {128}}}), "tensor 0: 'w1' [784×100] here, 'w' [784×100] there");
  EXPECT_EQ(difference(ours, {{"w1", {784, 100}}}), "2 tensors here, 1 there");
  EXPECT_EQ(difference({}, ours), "0 tensors here, 2 there");
  EXPECT_NE(difference({{"w", {100, 784}}}, {{"w", {784, 100}}}), "") << "same elements, other order";
}

TEST(Layout, AFragmentBeginsWithABlock) {
  const Layout layout = layout_of({{"a", {3}}, {"b", {70}, "x"}, {"c", {2}, "x"}, {"d", {5}}, {"e", {1}, "y"}});
  EXPECT_THAT(layout.fragments, ElementsAre("", "x", "y"));
  EXPECT_THAT(layout.tensor_fragment, ElementsAre(0, 1, 1, 0, 2));
  EXPECT_THAT(layout.tensor_first, ElementsAre(0, 64, 134, 192, 256));
  EXPECT_EQ(layout.elements, 257u);
  const Layout plain = layout_of({{"a", {3}}, {"b", {70}}});
  EXPECT_THAT(plain.tensor_first, ElementsAre(0, 3));
  EXPECT_EQ(plain.elements, 73u);
}

/// Up to `most_tensors` tensors of up to `most_elements` elements, in three fragments.
Schema random_schema(Random& random, uint64_t most_tensors, uint64_t most_elements) {
  Schema schema;
  for (uint64_t tensor = 0; tensor < 1 + random.below(most_tensors); ++tensor) {
    schema.push_back({std::to_string(tensor),
                      {static_cast<int64_t>(1 + random.below(most_elements))},
                      std::to_string(random.below(3))});
  }
  return schema;
}

TEST(ShardMap, NoBucketHasTwoFragments) {
  Random random(20261126, 1);
  for (int round = 0; round < 300; ++round) {
    const Schema schema = random_schema(random, 9, 900);
    const Layout layout = layout_of(schema);
    const auto shard_count = static_cast<uint32_t>(1 + random.below(4));
    const ShardMap map = ShardMap::cut(layout, shard_count, 256, PushFormat::int8).value();
    EXPECT_EQ(map.fragment_count(), layout.fragments.size());
    uint64_t next = 0;
    for (uint32_t shard = 0; shard < shard_count; ++shard) {
      for (uint32_t i = 0; i < map.bucket_count(shard); ++i) {
        const ElementRange bucket = map.bucket(shard, i);
        ASSERT_EQ(bucket.first, next) << "round " << round;
        ASSERT_EQ(bucket.first % 64, 0u);
        ASSERT_TRUE(bucket.count > 0 && bucket.count <= 64) << bucket.count;
        next += bucket.count;
        for (size_t tensor = 0; tensor < schema.size(); ++tensor) {
          const uint64_t first = layout.tensor_first[tensor], end = first + schema[tensor].elements();
          if (first < next && end > bucket.first) {
            ASSERT_EQ(layout.tensor_fragment[tensor], map.fragment(shard, i)) << "round " << round;
          }
        }
      }
    }
    EXPECT_EQ(next, layout.elements);
  }
}

TEST(SlotPlaces, BucketsOfOneFragmentShareAPlaceInTurns) {
  Random random(20261126, 2);
  for (int round = 0; round < 300; ++round) {
    const Schema schema = random_schema(random, 6, 3000);
    const ShardMap map = ShardMap::cut(layout_of(schema), 2, 256).value();
    const uint64_t limit = random.below(20) * 256;
    for (const uint32_t shard : {0u, 1u}) {
      const SlotPlaces places(map, shard, limit);
      const uint32_t bucket_count = map.bucket_count(shard);
      const uint64_t most = limit == 0 ? bucket_count : std::max<uint64_t>(limit / 256, map.fragment_count());
      ASSERT_LE(places.count(), most) << "round " << round;
      EXPECT_EQ(places.region_bytes() - bucket_count * sizeof(SlotHeader),
                places.count() * std::min<uint64_t>(64, map.shard(shard).count) * sizeof(float));
      uint32_t first_count = 0;
      for (uint32_t bucket = 0; bucket < bucket_count; ++bucket) {
        ASSERT_LT(places.payload_at(bucket), std::max<uint64_t>(places.count(), 1) * 256);
        const std::optional<uint32_t> before = places.before(bucket);
        if (!before.has_value()) {
          ++first_count;
          continue;
        }
        ASSERT_GT(*before, bucket) << "the last bucket leaves first";
        ASSERT_EQ(places.after(*before), bucket);
        ASSERT_EQ(places.payload_at(*before), places.payload_at(bucket));
        ASSERT_EQ(map.fragment(shard, *before), map.fragment(shard, bucket));
      }
      ASSERT_EQ(first_count, places.count()) << "each place has one first bucket";
    }
  }
}

}  // namespace
}  // namespace gradrail::ps
