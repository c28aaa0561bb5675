#include "worker/trainer/client_variables.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "base/status.h"
#include "fmt/format.h"

namespace gradrail::worker {
namespace {

/// Time limit for absent workers. Workers are started together. One that has not joined when the chief is done may be a
/// slow starter or never join: a start takes one second.
constexpr auto kTimeoutForAbsent = std::chrono::seconds(10);

/// "0: 1204, 1: 96, 2-3: 12, 33+: 2": how many exchanges had which staleness.
std::string histogram(const ClientStats& stats) {
  const size_t last = stats.staleness.size() - 1;
  std::string text;
  for (size_t from = 0, to = 0; from <= last; from = to + 1) {
    // Ranges double: 0, 1, 2-3, 4-7. The last cell counts all larger values, so it has a separate range.
    to = from == last ? last : std::min(std::max(2 * from, size_t{1}) - 1, last - 1);
    const uint64_t count = std::accumulate(stats.staleness.begin() + static_cast<ptrdiff_t>(from),
                                           stats.staleness.begin() + static_cast<ptrdiff_t>(to) + 1, uint64_t{0});
    if (count == 0) continue;
    const std::string upper = from == last ? "+" : from == to ? "" : fmt::format("-{}", to);
    text += fmt::format("{}{}{}: {}", text.empty() ? "" : ", ", from, upper, count);
  }
  return text;
}

}  // namespace

absl::Status ClientVariables::pull_final() {
  // The order matters: own steps, then those of all running workers, then the parameters that result.
  GRADRAIL_RETURN_IF_ERROR(client_.finish_steps());
  GRADRAIL_RETURN_IF_ERROR(client_.barriers().wait_for_live("training done", kTimeoutForAbsent));
  return client_.pull();
}

std::vector<std::string> ClientVariables::summary(bool verbose) const {
  const ClientStats stats = client_.statistics().now();
  std::vector<std::string> lines = {fmt::format(
      "Exchange: {} exchanges, p50 {:.1f}us, p99 {:.1f}us, {} bytes pushed, {} bytes returned", stats.exchange_count,
      static_cast<double>(stats.exchange.quantile_ns(0.5)) * 1e-3,
      static_cast<double>(stats.exchange.quantile_ns(0.99)) * 1e-3, stats.bytes_pushed, stats.bytes_returned)};
  if (stats.push_format != PushFormat::fp32 || stats.return_format != ReturnFormat::fp32) {
    lines.push_back(fmt::format("Formats: push {}, {} bytes, {} in fp32; return {}, {} bytes, {} in fp32",
                                push_format_name(stats.push_format), stats.bytes_pushed, stats.bytes_pushed_fp32,
                                return_format_name(stats.return_format), stats.bytes_returned,
                                stats.bytes_returned_fp32));
  }
  if (stats.exchange_count > 0) {
    lines.push_back(fmt::format("Staleness: mean {:.2f}, max {} updates ({})",
                                static_cast<double>(stats.staleness_sum) / static_cast<double>(stats.exchange_count),
                                stats.staleness_max, histogram(stats)));
  }
  if (stats.wait_ns > 0) {
    lines.push_back(
        fmt::format("Waited: {:.2f}s for the gradients of other workers", static_cast<double>(stats.wait_ns) * 1e-9));
  }
  if (stats.dropped > 0) {
    lines.push_back(stats.drops_late
                        ? fmt::format("Dropped: {} gradients arrived too late for their sum", stats.dropped)
                        : fmt::format("Late: {} gradients entered a later step", stats.dropped));
  }
  for (const std::string& path : stats.paths) lines.push_back(fmt::format("Path: {}", path));
  // The bytes of one path are those of the line above.
  for (const ClientStats::PathBytes& bytes : stats.path_bytes) {
    if (stats.path_bytes.size() > 1) {
      lines.push_back(fmt::format("Bytes: {}: {} pushed, {} returned", bytes.path, bytes.pushed, bytes.returned));
    }
  }
  if (verbose) lines.push_back(fmt::format("Registered: {}", stats.registered.text()));
  if (stats.flushes > 0) {
    lines.push_back(fmt::format("Flushes: {} of what network devices wrote into this GPU's memory", stats.flushes));
  }
  if (stats.rejoins > 0) {
    lines.push_back(
        fmt::format("Rejoined: {} times after a loss, {} steps done once more", stats.rejoins, stats.redone));
  }
  if (stats.moves + stats.returns > 0) {
    lines.push_back(fmt::format("Moves: {} paths were lost and replaced, {} times back to a better one", stats.moves,
                                stats.returns));
  }
  return lines;
}

}  // namespace gradrail::worker
