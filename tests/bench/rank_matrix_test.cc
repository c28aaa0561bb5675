#include "bench/cluster/rank_matrix.h"

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradrail::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// `hosts[rank]` is the host of a rank.
RankMatrix matrix_of(const std::vector<int>& hosts, const std::function<double(size_t, size_t)>& time_us,
                     bool directed = false) {
  std::vector<RankPlace> places;
  for (size_t rank = 0; rank < hosts.size(); ++rank)
    places.push_back({.host_id = fmt::format("h{}", hosts[rank]), .address = fmt::format("10.0.0.{}", rank)});
  RankMatrix matrix(places);
  for (size_t from = 0; from < hosts.size(); ++from) {
    for (size_t to = directed ? 0 : from + 1; to < hosts.size(); ++to) {
      if (from != to) matrix.set(from, to, time_us(from, to), directed);
    }
  }
  return matrix;
}

TEST(RankMatrix, EqualPairsNameNothing) {
  const RankMatrix matrix =
      matrix_of({0, 1, 2, 3}, [](size_t from, size_t) { return 100.0 + static_cast<double>(from); });
  EXPECT_DOUBLE_EQ(matrix.reference_us(), 100.0);
  EXPECT_THAT(matrix.slow_parts(1.5), IsEmpty());
}

TEST(RankMatrix, ASlowHostIsNamedInsteadOfItsPairs) {
  for (const size_t count : {size_t{3}, size_t{4}, size_t{9}}) {
    std::vector<int> hosts;
    for (size_t i = 0; i < count; ++i) hosts.push_back(static_cast<int>(i));
    const RankMatrix matrix =
        matrix_of(hosts, [](size_t from, size_t to) { return from == 2 || to == 2 ? 300.0 : 100.0; });
    EXPECT_THAT(matrix.slow_parts(1.5),
                ElementsAre(fmt::format("host 10.0.0.2 (rank 2): {} pairs take 3.00 times the reference", count - 1)));
    EXPECT_THAT(matrix.slow_parts(4.0), IsEmpty());
  }
}

TEST(RankMatrix, TwoSlowHostsOfFive) {
  const auto slow = [](size_t rank) { return rank == 0 || rank == 4; };
  const RankMatrix matrix =
      matrix_of({0, 1, 2, 3, 4}, [&](size_t from, size_t to) { return slow(from) || slow(to) ? 250.0 : 100.0; });
  EXPECT_THAT(matrix.slow_parts(1.5), ElementsAre("host 10.0.0.0 (rank 0): 4 pairs take 2.50 times the reference",
                                                  "host 10.0.0.4 (rank 4): 3 pairs take 2.50 times the reference"));
}

TEST(RankMatrix, OneOfTwoNicsOfAHost) {
  // Ranks 0 and 1 share a host. Their own pair is fast, because it crosses no link.
  const RankMatrix matrix = matrix_of({0, 0, 1, 2, 3}, [](size_t from, size_t to) {
    if (from == 0 && to == 1) return 5.0;
    return from == 1 || to == 1 ? 400.0 : 100.0;
  });
  EXPECT_DOUBLE_EQ(matrix.reference_us(), 100.0);
  EXPECT_THAT(matrix.slow_parts(1.5), ElementsAre("NIC 10.0.0.1 (rank 1): 3 pairs take 4.00 times the reference"));
}

TEST(RankMatrix, AHostWithTwoSlowNicsIsOnePart) {
  const RankMatrix matrix = matrix_of({0, 0, 1, 2, 3}, [](size_t from, size_t to) {
    if (from == 0 && to == 1) return 5.0;
    return from <= 1 ? 400.0 : 100.0;
  });
  EXPECT_THAT(matrix.slow_parts(1.5), ElementsAre("host 10.0.0.0 (ranks 0, 1): 6 pairs take 4.00 times the reference"));
}

TEST(RankMatrix, ALinkAndItsDirection) {
  const auto time_us = [](size_t from, size_t to) { return from == 3 && to == 1 ? 170.0 : 100.0; };
  EXPECT_THAT(matrix_of({0, 1, 2, 3}, time_us, true).slow_parts(1.5),
              ElementsAre("link rank 3 (10.0.0.3) to rank 1 (10.0.0.1): 1 pair takes 1.70 times the reference"));
  const auto both = [](size_t from, size_t to) { return from == 1 && to == 3 ? 170.0 : 100.0; };
  EXPECT_THAT(matrix_of({0, 1, 2, 3}, both).slow_parts(1.5),
              ElementsAre("link rank 1 (10.0.0.1) and rank 3 (10.0.0.3): 1 pair takes 1.70 times the reference"));
}

TEST(RankMatrix, FailedPairsAreSlow) {
  const RankMatrix matrix = matrix_of(
      {0, 1, 2, 3}, [](size_t from, size_t to) { return from == 2 || to == 2 ? RankMatrix::kFailed : 100.0; });
  EXPECT_THAT(matrix.slow_parts(1.5), ElementsAre("host 10.0.0.2 (rank 2): 3 pairs failed"));
  const RankMatrix none = matrix_of({0, 1}, [](size_t, size_t) { return RankMatrix::kFailed; });
  EXPECT_EQ(none.reference_us(), 0.0);
  EXPECT_THAT(none.slow_parts(1.5), ElementsAre("link rank 0 (10.0.0.0) and rank 1 (10.0.0.1): 1 pair failed"));
}

TEST(RankMatrix, LinesShowEachPair) {
  const RankMatrix matrix =
      matrix_of({0, 1, 2}, [](size_t from, size_t to) { return from == 0 && to == 2 ? RankMatrix::kFailed : 100.0; });
  EXPECT_THAT(
      matrix.lines(),
      ElementsAre(" rank         0         1         2", "    0         -     100.0    failed  10.0.0.0",
                  "    1     100.0         -     100.0  10.0.0.1", "    2    failed     100.0         -  10.0.0.2"));
}

}  // namespace
}  // namespace gradrail::bench
