// Whole runs of workers and shards in virtual time, each from one seed. A failure is replayed, with a trace, by
//   GRADRAIL_SIM_SEED=<seed> shard_protocol_simulation_test
// and GRADRAIL_SIM_SEED_COUNT=<n> runs more seeds than usual.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "fmt/format.h"
#include "gtest/gtest.h"
#include "tests/ps/shard/simulation/cluster.h"
#include "tests/ps/shard/simulation/plan.h"

namespace gradrail::ps::simulation {
namespace {

constexpr uint64_t kSeedCount = 2'000;
constexpr uint64_t kFailuresShown = 3;

uint64_t from_environment(const char* name, uint64_t fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::strtoull(text, nullptr, 10);
}

std::string replay(uint64_t seed) {
  return fmt::format(
      "replay: GRADRAIL_SIM_SEED={} shard_protocol_simulation_test --gtest_filter=ProtocolSimulation.AllSeeds", seed);
}

/// A fault that no seed produced would leave its rule untested.
void expect_all_seen(const Coverage& seen) {
  EXPECT_GT(seen.lost_messages, 0u);
  EXPECT_GT(seen.copies, 0u);
  EXPECT_GT(seen.reconnects, 0u);
  EXPECT_GT(seen.restarts, 0u);
  EXPECT_GT(seen.departures, 0u);
  EXPECT_GT(seen.rejoins, 0u);
  EXPECT_GT(seen.refusals, 0u);
  EXPECT_GT(seen.ghosts, 0u);
  EXPECT_GT(seen.stale_arrivals, 0u);
  EXPECT_GT(seen.answered_unapplied, 0u);
  EXPECT_GT(seen.steps_by_window, 0u);
}

TEST(ProtocolSimulation, AllSeeds) {
  if (const uint64_t seed = from_environment("GRADRAIL_SIM_SEED", 0); seed != 0) {
    EXPECT_EQ(Cluster(plan_of(seed), true).run(), "") << replay(seed);
    return;
  }
  Coverage seen;
  uint64_t failures = 0;
  const uint64_t seed_count = from_environment("GRADRAIL_SIM_SEED_COUNT", kSeedCount);
  for (uint64_t seed = 1; seed <= seed_count && failures < kFailuresShown; ++seed) {
    Cluster cluster(plan_of(seed), false);
    const std::string failure = cluster.run();
    EXPECT_EQ(failure, "") << replay(seed);
    failures += failure.empty() ? 0 : 1;
    seen += cluster.coverage();
  }
  if (seed_count >= kSeedCount && failures == 0) expect_all_seen(seen);
  fmt::print(
      "{} seeds: {} events, {} messages lost, {} copies, {} reconnects, {} restarts, {} departures, {} returns, "
      "{} refusals, {} ghosts, {} arrivals of old incarnations, {} answers without an update, {} steps by a window\n",
      seed_count, seen.events, seen.lost_messages, seen.copies, seen.reconnects, seen.restarts, seen.departures,
      seen.rejoins, seen.refusals, seen.ghosts, seen.stale_arrivals, seen.answered_unapplied, seen.steps_by_window);
}

}  // namespace
}  // namespace gradrail::ps::simulation
