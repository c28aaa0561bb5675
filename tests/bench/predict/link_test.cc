// Fair shares of a link, and the order of events.
#include "bench/predict/network/link.h"

#include <cmath>
#include <limits>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradrail::bench::predict {
namespace {

using ::testing::ElementsAre;

TEST(PredictLink, MessagesHaveEqualShares) {
  Link link(8);  // a byte in a nanosecond
  std::vector<uint32_t> finished;
  EXPECT_EQ(link.begin(0, 100, 0), 100);
  // The event at 100 stays: that the message ends later is found out there.
  EXPECT_FALSE(std::isfinite(link.begin(1, 100, 50)));
  EXPECT_EQ(link.finish(100, finished), 150);
  EXPECT_TRUE(finished.empty());
  EXPECT_EQ(link.finish(150, finished), 200);
  EXPECT_THAT(finished, ElementsAre(0));
  link.finish(200, finished);
  EXPECT_THAT(finished, ElementsAre(0, 1));
  EXPECT_EQ(link.crossed(300), 200);
}

TEST(PredictLink, AShorterMessageOvertakes) {
  Link link(8);
  std::vector<uint32_t> finished;
  EXPECT_EQ(link.begin(0, 1000, 0), 1000);
  EXPECT_EQ(link.begin(1, 10, 100), 120);
  EXPECT_EQ(link.finish(120, finished), 1010);
  EXPECT_THAT(finished, ElementsAre(1));
  // The first event of the link is out of date.
  EXPECT_FALSE(std::isfinite(link.finish(1000, finished)));
  EXPECT_THAT(finished, ElementsAre(1));
}

TEST(PredictLink, AcknowledgmentsDelayMessagesOnly) {
  Link link(8);
  std::vector<uint32_t> finished;
  link.delay(100, 0);  // idle
  EXPECT_EQ(link.begin(0, 100, 0), 100);
  link.delay(20, 50);
  EXPECT_EQ(link.finish(100, finished), 120);
}

TEST(PredictLink, MessagesEndAfterHours) {
  Random random(1);
  for (const Time begin : {0.0, 3e12, 7e14}) {  // 0, 50 minutes, 8 days
    for (int run = 0; run < 200; ++run) {
      Link link(100);
      Time next = std::numeric_limits<Time>::infinity();
      for (uint32_t i = 0; i < 8; ++i) next = std::min(next, link.begin(i, 1e5 * (1 + random.uniform()), begin + i));
      std::vector<uint32_t> finished;
      for (int events = 0; finished.size() < 8 && events < 100; ++events) next = link.finish(next, finished);
      ASSERT_EQ(finished.size(), 8u) << "begin " << begin << ", run " << run;
    }
  }
}

TEST(PredictEvents, ComeByTimeThenByInsertion) {
  EventQueue queue;
  Random random(1);
  for (uint32_t i = 0; i < 5000; ++i) queue.insert(static_cast<Time>(random.below(50)), Event::Kind::push, i);
  Event last = queue.take();
  for (uint32_t i = 1; i < 5000; ++i) {
    const Event next = queue.take();
    ASSERT_TRUE(last.at < next.at || (last.at == next.at && last.object < next.object));
    last = next;
  }
  EXPECT_TRUE(queue.empty());
}

}  // namespace
}  // namespace gradrail::bench::predict
