#include "worker/client/stats_json.h"

#include "nlohmann/json.hpp"

namespace gradrail::worker {
namespace {

double seconds(double ns) { return ns * 1e-9; }

}  // namespace

std::string to_json(const ClientStats& stats) {
  const Histogram& times = stats.exchange;
  nlohmann::json paths = nlohmann::json::array();
  for (const ClientStats::PathBytes& path : stats.path_bytes) {
    paths.push_back({{"path", path.path}, {"bytes_pushed", path.pushed}, {"bytes_returned", path.returned}});
  }
  const nlohmann::json text = {
      {"global_step", stats.global_step},
      {"exchanges", stats.exchange_count},
      {"exchange_seconds",
       {{"count", times.count()},
        {"min", seconds(static_cast<double>(times.min_ns()))},
        {"mean", seconds(times.mean_ns())},
        {"p50", seconds(static_cast<double>(times.quantile_ns(0.5)))},
        {"p99", seconds(static_cast<double>(times.quantile_ns(0.99)))},
        {"max", seconds(static_cast<double>(times.max_ns()))}}},
      {"wait_seconds", seconds(static_cast<double>(stats.wait_ns))},
      {"staleness_sum", stats.staleness_sum},
      {"staleness_max", stats.staleness_max},
      {"dropped", stats.dropped},
      {"bytes_pushed", stats.bytes_pushed},
      {"bytes_returned", stats.bytes_returned},
      {"bytes_pushed_fp32", stats.bytes_pushed_fp32},
      {"bytes_returned_fp32", stats.bytes_returned_fp32},
      {"path_bytes", paths},
      {"paths", stats.paths},
      {"moves", stats.moves},
      {"returns", stats.returns},
      {"takeovers", stats.takeovers},
      {"rejoins", stats.rejoins},
      {"redone", stats.redone},
  };
  // A path can contain bytes of the file system that are no UTF-8.
  return text.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace gradrail::worker
