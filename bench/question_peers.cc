// What somebody would use instead of us, doing the same in the same run: gradient to another process, SGD, parameters
// back, one worker.
#include "bench/exchange_flags.h"
#include "bench/figures_apart.h"
#include "bench/peers.h"
#include "bench/question.h"

namespace gradrail::bench {
namespace {

constexpr const char* kOurs = "gradrail ";

std::vector<Figure> run_apart(const Peer& peer, const PeerLoad& load) {
  const Duration patience = std::chrono::seconds(30 + static_cast<int64_t>(8 * load.seconds));
  Figure figure =
      figures_apart(peer.name, load.bytes, patience, [&] { return std::vector<Figure>{peer.run(load)}; }).front();
  figure.path = peer.name;
  figure.bytes = load.bytes;
  figure.count = load.bytes / sizeof(float);
  figure.alg_bytes = static_cast<double>(load.bytes);
  figure.bus_bytes = 2.0 * static_cast<double>(load.bytes);
  return {figure};
}

double time_of(const std::vector<Figure>& rows, const std::string& path) {
  for (const Figure& row : rows)
    if (row.path == path) return row.times.p50_us;
  return 0.0;
}

/// How many times as long as one fused apply, and as ours takes, each takes.
void add_ratios(std::vector<Figure>& rows) {
  const double bound = time_of(rows, kApplyBound);
  std::vector<std::pair<std::string, double>> ours;
  for (const Figure& row : rows)
    if (row.path.starts_with(kOurs) && row.failed.empty())
      ours.emplace_back("/" + row.path.substr(std::string(kOurs).size()), row.times.p50_us);
  for (Figure& row : rows) {
    if (!row.failed.empty() || row.times.p50_us <= 0) continue;
    row.more.clear();
    if (bound > 0) row.more.emplace_back("/bound", row.times.p50_us / bound);
    if (row.path.starts_with(kOurs) || row.path.starts_with("bound")) continue;
    for (const auto& [name, micros] : ours) row.more.emplace_back(name, row.times.p50_us / micros);
  }
}

}  // namespace

absl::StatusOr<int> ask_peers(const Options& options) {
  Options own = options;
  if (own.transports.empty()) own.transports = {"shm", "tcp"};
  const absl::StatusOr<ExchangeLoad> load = load_of(own, 1, "sync");
  if (!load.ok()) return load.status();
  if (load->workers != 1 || load->optimizer != ps::OptimizerKind::sgd)
    return absl::InvalidArgumentError("peers: all of them do SGD with one worker; leave --workers and --optimizer out");
  const absl::StatusOr<std::vector<uint64_t>> list = sizes(own, "64", "64M", sizeof(float));
  if (!list.ok()) return list.status();
  const absl::StatusOr<std::vector<TransportChoice>> choices = choose_transports(own, true);
  if (!choices.ok()) return choices.status();
  Report report(own, "gradrail bench peers: " + describe(*load));
  report.note("/bound: times as long as one fused apply. /shm, /tcp: times as long as ours: above 1 ours is faster");
  report.begin(Layout::sweep);
  std::vector<Contestant> contestants;
  const auto add = [&](const std::vector<Peer>& peers) {
    for (const Peer& peer : peers) {
      contestants.push_back({peer.name, [&own, peer](uint64_t bytes) {
                               return run_apart(peer, {.bytes = bytes, .seconds = own.seconds, .touch = own.touch});
                             }});
    }
  };
  add(bounds());
  for (Contestant& ours : exchange_contestants(*load, *choices)) {
    contestants.push_back({ours.name, [ours](uint64_t bytes) {
                             std::vector<Figure> rows = ours.measure(bytes);
                             rows.front().path = kOurs + ours.name;
                             return rows;
                           }});
  }
  add(peers());
  take_turns(own, *list, contestants, report, add_ratios);
  return report.finish(false);
}

}  // namespace gradrail::bench
