#include <cstdlib>
#include <iostream>

#include "fmt/format.h"
#include "gtest/gtest.h"
#include "tests/topology/plan_oracle.h"

namespace gradrail::topology {
namespace {

/// The variables make the long run: GRADRAIL_ORACLE_MACHINES=10000, and GRADRAIL_ORACLE_SEED for other machines.
uint64_t number_from(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

/// The rules are greedy; the search goes through all plans of small machines.
TEST(PlanOracle, PlansCostAsLittleAsTheBestOnes) {
  const uint64_t first = number_from("GRADRAIL_ORACLE_SEED", 1);
  const uint64_t machines = number_from("GRADRAIL_ORACLE_MACHINES", 1000);
  uint64_t equal = 0, shown = 0;
  for (uint64_t seed = first; seed < first + machines; ++seed) {
    const RandomCase one = small_case(seed);
    const absl::StatusOr<Placement> placement = plan(one.machine, one.request);
    ASSERT_TRUE(placement.ok()) << "seed " << seed << ": " << placement.status();
    const Cost cost = cost_of(one, *placement), least = least_cost(one, *placement);
    ASSERT_GE(cost, least) << "seed " << seed << ": the search missed this plan: " << describe(cost, least);
    for (const CostField field : {kTowerLastResort, kTowerNoRdma, kTowerPath})
      EXPECT_EQ(cost[field], least[field]) << "seed " << seed << ": " << describe(cost, least);
    equal += cost == least ? 1 : 0;
    if (cost != least && ++shown <= 10) std::cout << "seed " << seed << ": " << describe(cost, least) << "\n";
  }
  std::cout << fmt::format("{} of {} plans cost the least ({:.2f} %), seeds {} to {}\n", equal, machines,
                           100.0 * static_cast<double>(equal) / static_cast<double>(machines), first,
                           first + machines - 1);
  // The long run reached 99.75 %. Some of the other plans would need an exchange of more threads. Others keep the cores
  // of a GPU tower on one node, which the cost does not count.
  EXPECT_GE(1000 * equal, 995 * machines);
}

}  // namespace
}  // namespace gradrail::topology
