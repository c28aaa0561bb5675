// A model's backward pass replayed against the real server. Layer after layer becomes ready, and what the exchange adds
// to the step is what it does not hide.
#include "base/status.h"
#include "bench/driver/suite.h"
#include "bench/suites/exchange_flags.h"
#include "bench/suites/layer_list.h"
#include "fmt/format.h"

namespace gradrail::bench {

absl::StatusOr<int> run_replay_suite(const Options& options) {
  GRADRAIL_ASSIGN_OR_RETURN(const LayerList list, read_layer_list(options.file));
  GRADRAIL_ASSIGN_OR_RETURN(ExchangeLoad load, load_of(options, 1, "sync"));
  // The size of the run follows from the list: the flags -b and -e have no effect here.
  load.layers = list.layers;
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<TransportChoice> choices,
                            choose_transports(options, !options.transports.empty()));
  const double backward_us = list.layers.back().ready_us;
  Report report(options, fmt::format("gradrail bench replay {}: {}", list.name, describe(load)));
  report.note(
      fmt::format("{} layers, {} bytes, backward pass {:.0f} us", list.layers.size(), list.bytes(), backward_us));
  if (!list.about.empty()) report.note(list.about);
  report.note("time: one step, until the last fresh parameter. exposed_us: part of it after the backward pass");
  add_ranks(load, choices, report);
  report.begin(Layout::sweep);
  std::vector<Contestant> contestants;
  for (const TransportChoice& choice : choices) {
    contestants.push_back({choice.title(), [&, choice](uint64_t bytes) -> std::vector<Figure> {
                             if (!choice.unusable.empty())
                               return {not_measured(choice.title(), bytes, choice.unusable)};
                             Figure figure = run_exchange(with(load, choice, bytes)).figure;
                             // The backward pass has an exact length here: the rest of the step is due to the exchange.
                             figure.more = {{"exposed_us", figure.times.p50_us - backward_us}};
                             return {figure};
                           }});
  }
  take_turns(options, {list.bytes()}, contestants, report);
  return report.finish(!options.transports.empty());
}

}  // namespace gradrail::bench
