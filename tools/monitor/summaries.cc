#include "tools/monitor/summaries.h"

#include <cctype>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/status.h"
#include "fmt/format.h"

namespace gradrail::tools {
namespace {

/// Makes a tag of a path. A slash in a tag begins another group; some readers refuse other characters. bytes_in/ and
/// bytes_out/ are the groups; the path must not open another one.
std::string tag_of(std::string path) {
  for (char& c : path) c = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '-' ? c : '_';
  return path;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Summaries>> Summaries::create(const std::string& folder, uint32_t every) {
  absl::StatusOr<worker::EventFile> file = worker::EventFile::create(folder);
  // The flag's name first: the caller prints the message without the flag that caused it.
  if (!file.ok()) return absl::Status(file.status().code(), fmt::format("--logs_path: {}", message_of(file.status())));
  return std::unique_ptr<Summaries>(new Summaries(*std::move(file), every));
}

void Summaries::begin_at(uint64_t global_step) {
  if (!broken_) check(file_.write_start(static_cast<int64_t>(global_step)));
}

void Summaries::write(uint64_t global_step, const worker::Scalars& scalars) {
  if (broken_) return;
  check(file_.write(static_cast<int64_t>(global_step), scalars));
}

void Summaries::check(const absl::Status& written) {
  if (written.ok()) return;
  // A full disk fails each write: one warning is enough, and the run matters more.
  broken_ = true;
  log_warning("the run continues without summaries: {}", message_of(written));
}

void Summaries::add_exchange(const ClientStats& stats, worker::Scalars& scalars) {
  // TensorBoard draws curves: quantiles over the whole run would hide a change.
  Histogram recent = stats.exchange;
  recent.subtract(before_.exchange);
  if (const auto exchanges = static_cast<double>(recent.count()); exchanges > 0) {
    scalars.emplace_back("exchange/p50_ms", static_cast<double>(recent.quantile_ns(0.5)) * 1e-6);
    scalars.emplace_back("exchange/p99_ms", static_cast<double>(recent.quantile_ns(0.99)) * 1e-6);
    scalars.emplace_back("staleness/mean",
                         static_cast<double>(stats.staleness_sum - before_.staleness_sum) / exchanges);
  }
  scalars.emplace_back("staleness/max", static_cast<double>(stats.staleness_max));
  for (const ClientStats::PathBytes& path : stats.path_bytes) {
    scalars.emplace_back("bytes_in/" + tag_of(path.path), static_cast<double>(path.returned));
    scalars.emplace_back("bytes_out/" + tag_of(path.path), static_cast<double>(path.pushed));
  }
  // Totals, not differences: their curve is flat until such an event occurs.
  scalars.emplace_back("fallbacks", static_cast<double>(stats.moves));
  scalars.emplace_back("wait_s", static_cast<double>(stats.wait_ns) * 1e-9);
  scalars.emplace_back("dropped_gradients", static_cast<double>(stats.dropped));
  before_ = stats;
}

void Summaries::step(const worker::Progress& progress, worker::Workload& workload, const Client* client) {
  ++steps_;
  // A restored run repeats steps, and so does one that returns to an earlier step after the return of a ps.
  if (last_step_ == 0 || progress.global_step < last_step_) begin_at(progress.global_step);
  last_step_ = progress.global_step;
  // The last batch of an epoch always writes: an epoch may be shorter than `every_`.
  if (progress.batch % every_ != 0 && progress.batch != progress.batch_count) return;
  const TimePoint now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - written_at_).count();
  worker::Scalars scalars = {{"cost", progress.cost}};
  if (const std::optional<float> share = workload.batch_accuracy()) scalars.emplace_back("batch_accuracy", *share);
  // The first event can follow immediately, and a rate over no time is infinite.
  if (seconds > 0) {
    scalars.emplace_back("examples/sec", static_cast<double>(steps_ * workload.batch_size()) / seconds);
    // A restored run does not begin with 0, and it may have returned to an earlier step after the return of a ps.
    if (global_step_ > 0 && progress.global_step >= global_step_)
      scalars.emplace_back("global_step/sec", static_cast<double>(progress.global_step - global_step_) / seconds);
  }
  // Null with --ps 0: then there is no exchange.
  if (client != nullptr) add_exchange(client->statistics().now(), scalars);
  write(progress.global_step, scalars);
  steps_ = 0;
  written_at_ = now;
  global_step_ = progress.global_step;
}

void Summaries::graph(absl::Span<const worker::GraphNode> nodes) {
  if (!broken_) check(file_.write(nodes));
}

void Summaries::evaluated(uint64_t global_step, float accuracy) { write(global_step, {{"accuracy", accuracy}}); }

}  // namespace gradrail::tools
