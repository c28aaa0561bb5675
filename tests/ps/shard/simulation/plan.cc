#include "tests/ps/shard/simulation/plan.h"

#include "base/random.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "ps/protocol/training.h"

namespace gradrail::ps::simulation {
namespace {

constexpr uint64_t kPlanStream = 1;  // apart from the run's numbers: a changed run must not change its plan

/// Most runs have none of a fault, so that each is also seen alone.
uint32_t some(Random& random, uint32_t most) {
  return random.below(2) == 0 ? 0 : 1 + static_cast<uint32_t>(random.below(most));
}

}  // namespace

Plan plan_of(uint64_t seed) {
  Random random(seed, kPlanStream);
  Plan plan;
  plan.seed = seed;
  plan.worker_count = 1 + static_cast<uint32_t>(random.below(8));
  constexpr ModeKind kKinds[] = {ModeKind::async, ModeKind::sync, ModeKind::ssp, ModeKind::quorum};
  plan.mode = {kKinds[random.below(std::size(kKinds))], plan.worker_count, static_cast<uint32_t>(random.below(4))};
  if (plan.mode.kind == ModeKind::quorum) plan.mode.bound = 1 + plan.mode.bound % plan.worker_count;
  plan.bucket_counts.resize(1 + random.below(4));
  for (uint32_t& count : plan.bucket_counts) count = 1 + static_cast<uint32_t>(random.below(4));
  plan.step_count = 1 + random.below(12);
  plan.initialised = random.below(3) == 0;
  if (plan.initialised) plan.initial_version = random.below(100);
  plan.opens_with_pull = random.below(4) != 0;
  plan.jumps_ahead = random.below(2) == 0;
  plan.delay_max = 1 + random.below(random.below(2) == 0 ? 10 : 200);
  plan.duplicate_rate = random.below(3) == 0 ? 0.0 : 0.3 * random.uniform();
  plan.fault_horizon = plan.delay_max * (2 + plan.step_count * 2);
  plan.link_losses = some(random, 12);
  plan.restarts = some(random, 4);
  plan.kills = some(random, 2);
  plan.early_leaves = some(random, 2);
  plan.false_removals = some(random, 4);
  plan.forgeries = some(random, 4);
  plan.ghosts = some(random, 6);
  if (plan.mode.kind == ModeKind::quorum) {
    if (random.below(2) == 0) plan.mode.grace.seconds = 1;
    plan.mode.drops_late = random.below(3) == 0;
  }
  plan.window_max = 1 + random.below(4 * plan.delay_max);
  return plan;
}

std::string describe(const Plan& plan) {
  return fmt::format(
      "seed {}: {}, {} workers, {} buckets per shard, {} steps, {} at version {}, delay up to {}, duplicates {:.2f}; "
      "{} link losses, {} restarts, {} kills, {} early leaves, {} false removals, {} forgeries, {} ghosts",
      plan.seed, mode_text(plan.mode), plan.worker_count, fmt::join(plan.bucket_counts, "+"), plan.step_count,
      plan.initialised ? "restored" : "empty", plan.initial_version, plan.delay_max, plan.duplicate_rate,
      plan.link_losses, plan.restarts, plan.kills, plan.early_leaves, plan.false_removals, plan.forgeries, plan.ghosts);
}

}  // namespace gradrail::ps::simulation
