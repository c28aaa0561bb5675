#include "ps/protocol/trace_marks.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "ps/protocol/control.pb.h"

namespace gradrail::ps {
namespace {

std::vector<Mark> some_marks(size_t count) {
  constexpr uint64_t kSeed = 11;
  Random random(kSeed);
  std::vector<Mark> marks;
  for (size_t i = 0; i < count; ++i) {
    marks.push_back({.at_ns = static_cast<int64_t>(random.below(1'000'000'000'000)),  // of several shards: not sorted
                     .step = i,
                     .worker = static_cast<uint32_t>(random.below(9)),
                     .shard = static_cast<uint32_t>(random.below(3)),
                     .bucket = static_cast<uint32_t>(random.below(100)),
                     .kind = static_cast<Mark::Kind>(random.below(10))});
  }
  return marks;
}

void expect_equal(const Mark& a, const Mark& b) {
  EXPECT_EQ(std::tie(a.at_ns, a.step, a.worker, a.shard, a.bucket, a.kind),
            std::tie(b.at_ns, b.step, b.worker, b.shard, b.bucket, b.kind));
}

TEST(TraceMarks, RoundTrip) {
  const std::vector<Mark> marks = some_marks(500);
  const absl::StatusOr<std::vector<Mark>> back = marks_from(to_proto("worker/1", marks));
  ASSERT_TRUE(back.ok()) << back.status();
  ASSERT_EQ(back->size(), marks.size());
  for (size_t i = 0; i < marks.size(); ++i) expect_equal((*back)[i], marks[i]);
}

TEST(TraceMarks, TheLastMarksAreSentIfThereAreTooMany) {
  const std::vector<Mark> marks = some_marks(kMaxTraceMarks + 10);
  const proto::TaskMarks message = to_proto("ps/0", marks);
  EXPECT_LT(message.ByteSizeLong(), size_t{4} << 20);  // what gRPC takes
  const absl::StatusOr<std::vector<Mark>> back = marks_from(message);
  ASSERT_TRUE(back.ok()) << back.status();
  ASSERT_EQ(back->size(), kMaxTraceMarks);
  expect_equal(back->front(), marks[10]);
  expect_equal(back->back(), marks.back());
}

TEST(TraceMarks, BrokenMessagesAreRefused) {
  const std::vector<Mark> marks = some_marks(3);
  proto::TaskMarks uneven = to_proto("w", marks), unknown = uneven, many = uneven;
  uneven.add_step(1);
  unknown.set_kind(1, 10);
  for (size_t i = 0; i < kMaxTraceMarks; ++i) many.add_at_ns(0);
  for (const proto::TaskMarks& bad : {uneven, unknown, many})
    EXPECT_TRUE(absl::IsInvalidArgument(marks_from(bad).status()));
  proto::TaskMarks overflowing = to_proto("w", marks);
  overflowing.set_at_ns(0, INT64_MAX);
  overflowing.set_at_ns(1, INT64_MAX);
  EXPECT_TRUE(absl::IsInvalidArgument(marks_from(overflowing).status()));
}

}  // namespace
}  // namespace gradrail::ps
