#include "bench/driver/rounds.h"

#include <numeric>

#include "base/random.h"
#include "bench/driver/progress.h"
#include "fmt/format.h"

namespace gradrail::bench {
namespace {

constexpr uint64_t kSeed = 1;

std::vector<size_t> shuffled(size_t count, Random& random) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  // Fisher and Yates, with our own generator: std::shuffle gives other orders with other libraries.
  for (size_t i = count; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

}  // namespace

void take_turns(const Options& options, const std::vector<uint64_t>& sizes, const std::vector<Contestant>& contestants,
                Report& report, const std::function<void(std::vector<Figure>& rows)>& finish) {
  // All sizes and rounds use one generator: equal runs have equal orders.
  Random random(kSeed);
  Progress progress(sizes.size() * options.rounds * contestants.size());
  for (size_t size = 0; size < sizes.size(); ++size) {
    const uint64_t bytes = sizes[size];
    // [contestant][row][round]
    std::vector<std::vector<std::vector<Figure>>> measured(contestants.size());
    for (uint32_t round = 0; round < options.rounds; ++round) {
      // A new order in each round: a drift of the machine's speed does not favor one contestant.
      for (const size_t index : shuffled(contestants.size(), random)) {
        progress.show(fmt::format("size {} of {}, round {} of {}", size + 1, sizes.size(), round + 1, options.rounds));
        std::vector<Figure> rows = contestants[index].measure(bytes);
        // A contestant may give a different number of rows in different rounds: a failure has one.
        measured[index].resize(std::max(measured[index].size(), rows.size()));
        for (size_t row = 0; row < rows.size(); ++row) measured[index][row].push_back(std::move(rows[row]));
        progress.step_done();
      }
    }
    std::vector<Figure> merged;
    for (const auto& rows : measured)
      for (const std::vector<Figure>& rounds : rows) merged.push_back(merge(rounds));
    if (finish) finish(merged);
    progress.clear();
    for (Figure& figure : merged) report.add(std::move(figure));
  }
}

}  // namespace gradrail::bench
