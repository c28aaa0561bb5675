#include "absl/status/status.h"
#include "bench/predict/description.h"
#include "bench/predict/goodput.h"
#include "fmt/format.h"
#include "ps/protocol/mode.h"

namespace gradrail::bench::predict {
namespace {

/// The state of the model has about 100 bytes for each of these.
constexpr uint64_t kMostExchanges = uint64_t{1} << 25;
/// About five seconds.
constexpr double kMostFailures = 1e8;

}  // namespace

absl::Status validate(const Description& description) {
  const Cluster& cluster = description.cluster;
  const Load& load = description.load;
  const auto wrong = [](const std::string& text) { return absl::InvalidArgumentError(text); };
  if (load.bytes < sizeof(float) || load.bytes % sizeof(float) != 0)
    return wrong(fmt::format("--model {}: must be a positive multiple of 4 bytes", load.bytes));
  if (load.compute_ms == 0 && load.compute_sigma > 0)
    return wrong(
        fmt::format("--compute_sigma {}: has no effect without a compute time; give --compute_ms", load.compute_sigma));
  if (load.mode.grace.is_auto)
    return wrong(
        "--mode grace=auto: the window follows the lateness of real workers; give seconds, such as grace=0.05");
  Mode mode = load.mode;
  mode.worker_count = cluster.workers;
  if (absl::Status bound = ps::check_bound(mode); !bound.ok()) return bound;
  const uint64_t buckets = load.bytes / load.bucket_bytes + cluster.shard_count();
  if (buckets * cluster.workers > kMostExchanges)
    return wrong(
        fmt::format("--workers {} with {} buckets: at most {} pairs of a worker and a bucket; larger buckets "
                    "(--bucket_kib) or a smaller --model have fewer",
                    cluster.workers, buckets, kMostExchanges));
  const Failures& failures = description.failures;
  if (const double events = goodput_events(description); failures.mtbf_hours > 0 && events > kMostFailures)
    return wrong(
        fmt::format("--mtbf {}: {:.1e} failures and saves in {} runs of {} h, and at most {:.0e} are simulated; give a "
                    "larger time between failures",
                    failures.mtbf_hours, events, failures.runs, failures.run_hours, kMostFailures));
  return absl::OkStatus();
}

}  // namespace gradrail::bench::predict
