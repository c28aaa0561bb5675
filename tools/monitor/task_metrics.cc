#include "tools/monitor/task_metrics.h"

#include <string>
#include <utility>
#include <vector>

#include "ps/protocol/control.pb.h"

namespace gradrail::tools {
namespace {

/// Bounds of latencies are powers of two of a nanosecond, from 4 µs to 17 s. There the recorder's cells end, so that
/// counts are exact.
constexpr int kFirstPower = 12, kLastPower = 34;

Metric scalar(Metric::Kind kind, std::string name, std::string help, double value) {
  return {.name = std::move(name), .help = std::move(help), .kind = kind, .samples = {{.value = value}}};
}

Metric gauge(std::string name, std::string help, double value) {
  return scalar(Metric::Kind::gauge, std::move(name), std::move(help), value);
}

Metric counter(std::string name, std::string help, double value) {
  return scalar(Metric::Kind::counter, std::move(name), std::move(help), value);
}

Metric latency(const Histogram& histogram) {
  // Prometheus expects seconds, the recorder has nanoseconds.
  Metric::Sample sample{.count = histogram.count(), .sum = histogram.sum_ns() * 1e-9};
  for (int power = kFirstPower; power <= kLastPower; ++power) {
    sample.buckets.emplace_back(static_cast<double>(uint64_t{1} << power) * 1e-9, histogram.count_below_power(power));
  }
  return {.name = "gradrail_exchange_latency_seconds",
          .help = "Time of an exchange, from the first push to the last fresh parameter.",
          .kind = Metric::Kind::histogram,
          .samples = {std::move(sample)}};
}

Metric staleness(const ClientStats& stats) {
  Metric::Sample sample{.sum = static_cast<double>(stats.staleness_sum)};
  for (size_t steps = 0; steps < stats.staleness.size(); ++steps) {
    sample.count += stats.staleness[steps];
    // The last cell counts all larger values; Prometheus has them in its bucket of infinity.
    if (steps + 1 < stats.staleness.size()) sample.buckets.emplace_back(static_cast<double>(steps), sample.count);
  }
  return {.name = "gradrail_staleness_steps",
          .help = "Updates applied between the parameters of a gradient and its own application.",
          .kind = Metric::Kind::histogram,
          .samples = {std::move(sample)}};
}

Metric bytes_total() {
  return {.name = "gradrail_bytes_total",
          .help = "Bytes of exchanges, as this task sees their direction, by the path they took.",
          .kind = Metric::Kind::counter,
          .samples = {}};
}

/// Adds bytes from the view of this task: "out" of a worker is "in" at the ps.
void add_directions(Metric& bytes, const std::vector<std::pair<std::string, std::string>>& labels, uint64_t in,
                    uint64_t out) {
  for (const auto& [direction, count] : {std::pair("in", in), std::pair("out", out)}) {
    bytes.samples.push_back({.labels = {{"direction", direction}}, .value = static_cast<double>(count)});
    auto& all = bytes.samples.back().labels;
    all.insert(all.end(), labels.begin(), labels.end());
  }
}

void add_path(Metric& bytes, const std::string& path, uint64_t in, uint64_t out) {
  add_directions(bytes, {{"path", path}}, in, out);
}

Metric rail_bytes_total() {
  return {.name = "gradrail_rail_bytes_total",
          .help = "Bytes over paths with several rails or streams, as this task sees their direction, by rail.",
          .kind = Metric::Kind::counter,
          .samples = {}};
}

void add_rail(Metric& bytes, const std::string& path, const std::string& rail, uint64_t in, uint64_t out) {
  add_directions(bytes, {{"path", path}, {"rail", rail}}, in, out);
}

Metric fp32_bytes_total(const ClientStats& stats) {
  Metric bytes{.name = "gradrail_fp32_bytes_total",
               .help = "Bytes that the same exchanges would have if gradients and parameters were fp32.",
               .kind = Metric::Kind::counter,
               .samples = {}};
  for (const ClientStats::PathBytes& path : stats.path_bytes)
    add_path(bytes, path.path, path.returned_fp32, path.pushed_fp32);
  return bytes;
}

Metric global_step(uint64_t step) {
  return gauge("gradrail_global_step", "Updates applied to the parameters.", static_cast<double>(step));
}

}  // namespace

Metric build_info(const std::string& task) {
  // The labels carry the text, since a value is a number: the usual pattern for versions in Prometheus.
  return {.name = "gradrail_build_info",
          .help = "Always 1; the labels identify the build and the task.",
          .kind = Metric::Kind::gauge,
          .samples = {{.labels = {{"task", task}, {"version", GRADRAIL_VERSION}}, .value = 1.0}}};
}

Metrics worker_metrics(const ClientStats& stats, Duration under_way) {
  Metric bytes = bytes_total();
  for (const ClientStats::PathBytes& path : stats.path_bytes) add_path(bytes, path.path, path.returned, path.pushed);
  Metric rails = rail_bytes_total();
  for (const ClientStats::RailBytes& rail : stats.rail_bytes)
    add_rail(rails, rail.path, rail.address, rail.returned, rail.pushed);
  // The age of the exchange under way lets an alert detect one that does not end; a latency is known only afterwards.
  return {
      latency(stats.exchange),
      gauge("gradrail_exchange_under_way_seconds", "Age of the exchange under way; 0 between exchanges.",
            std::chrono::duration<double>(under_way).count()),
      std::move(bytes),
      fp32_bytes_total(stats),
      std::move(rails),
      staleness(stats),
      global_step(stats.global_step),
      counter("gradrail_fallbacks_total", "Paths lost during the run and replaced by another.",
              static_cast<double>(stats.moves)),
      counter("gradrail_path_returns_total", "Moves back to a better path.", static_cast<double>(stats.returns)),
      counter("gradrail_wait_seconds_total", "Time spent waiting for slower workers, as the mode requires.",
              static_cast<double>(stats.wait_ns) * 1e-9),
      counter(
          "gradrail_dropped_gradients_total",
          "Gradients that arrived too late for their step. They are lost with late=drop, else a later step has them.",
          static_cast<double>(stats.dropped))};
}

Metrics ps_metrics(const ps::proto::StatsReply& stats) {
  Metric bytes = bytes_total();
  for (const ps::proto::StatsReply::Path& path : stats.paths())
    add_path(bytes, path.path(), path.bytes_in(), path.bytes_out());
  Metric rails = rail_bytes_total();
  for (const ps::proto::StatsReply::Rail& rail : stats.rails())
    add_rail(rails, rail.path(), rail.address(), rail.bytes_in(), rail.bytes_out());
  Metric non_finite{.name = "gradrail_non_finite_gradients_total",
                    .help = "Gradients of buckets, with NaN or infinity, that entered finite parameters, by worker.",
                    .kind = Metric::Kind::counter,
                    .samples = {}};
  for (const ps::proto::StatsReply::NonFinite& of : stats.non_finite_gradients()) {
    non_finite.samples.push_back(
        {.labels = {{"worker", fmt::format("{}", of.task_index())}}, .value = static_cast<double>(of.gradients())});
  }
  Metrics metrics = {
      gauge("gradrail_workers_live", "Workers that have joined and neither left nor were lost.",
            stats.live_workers_size()),
      gauge("gradrail_workers_awaited", "Workers for which a synchronous step waits.", stats.waiting_for_size()),
      global_step(stats.global_step()),
      counter("gradrail_updates_total", "Updates of buckets, over all shards.", static_cast<double>(stats.updates())),
      std::move(bytes),
      std::move(rails),
      gauge("gradrail_non_finite_buckets", "Buckets with NaN or infinity in their parameters, over all shards.",
            stats.non_finite_buckets()),
      std::move(non_finite)};
  // Absent before the first checkpoint: 0 would mean a fresh one.
  if (stats.has_checkpoint_age_s()) {
    metrics.push_back(
        gauge("gradrail_checkpoint_age_seconds", "Since this task last wrote a checkpoint.", stats.checkpoint_age_s()));
  }
  // Absent without grace=auto: a length of 0 is a result there.
  if (stats.has_grace_window_s()) {
    metrics.push_back(gauge("gradrail_grace_window_seconds",
                            "Longest grace window of the shards, learned (grace=auto).", stats.grace_window_s()));
  }
  return metrics;
}

}  // namespace gradrail::tools
