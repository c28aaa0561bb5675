// The step at which a worker begins at a backup that has taken over.
#include "gtest/gtest.h"
#include "worker/client/exchange.h"

namespace gradrail::worker {
namespace {

/// An exchange without shards: its buckets have no part in the choice of the step.
struct Fixture {
  ClientOptions options;
  Identity identity{0};
  ModelMemory memory{Schema{{"w", {4}}}, PushFormat::fp32};
  RunFailure failure{true, [] {}};
  Telemetry telemetry{options};
  PathManager paths{options, identity, memory, failure, telemetry, exchange, {}};
  Exchange exchange{options, identity, memory, failure, telemetry, paths};
};

TEST(FirstStep, AWorkerThatHasNotPushedBeginsAtTheSmallerStep) {
  Fixture worker;
  worker.exchange.set_first_steps({8});
  worker.exchange.lower_first_steps({10});
  EXPECT_EQ(worker.exchange.step(), 7u) << "the lost ps has named the smaller one";
  worker.exchange.lower_first_steps({5});
  EXPECT_EQ(worker.exchange.step(), 4u) << "the next push is of step 5";
}

TEST(FirstStep, AWorkerThatHasPushedKeepsItsStep) {
  Fixture worker;
  worker.exchange.set_first_steps({8});
  worker.exchange.begin(0, ps::ArrivalKind::push, Clock::now());
  ASSERT_EQ(worker.exchange.step(), 8u);
  worker.exchange.lower_first_steps({5});
  EXPECT_EQ(worker.exchange.step(), 8u);
}

TEST(FirstStep, APullIsNoPush) {
  Fixture worker;
  worker.exchange.set_first_steps({8});
  worker.exchange.begin(0, ps::ArrivalKind::pull, Clock::now());
  worker.exchange.lower_first_steps({5});
  EXPECT_EQ(worker.exchange.step(), 4u);
}

}  // namespace
}  // namespace gradrail::worker
