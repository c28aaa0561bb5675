#include "bench/predict/output.h"

#include <algorithm>

#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "ps/protocol/mode.h"

namespace gradrail::bench::predict {

namespace {

nlohmann::json step_times(const Outcome& o) {
  return {{"median", o.step_s_median},
          {"p99", o.step_s_p99},
          {"mean", o.step_s_mean},
          {"min", o.step_s_min},
          {"max", o.step_s_max}};
}

nlohmann::json goodput_json(const Goodput& g) {
  return {{"goodput", g.steps_per_s},         {"goodput_share", g.share},   {"goodput_share_p5", g.share_p5},
          {"goodput_share_min", g.share_min}, {"lost_steps", g.lost_steps}, {"returns", g.returns},
          {"failures", g.failures},           {"stalled_s", g.stalled_s},   {"absent", g.absent}};
}

nlohmann::json outcome_json(const Description& d, const Outcome& o) {
  const Cluster& c = d.cluster;
  const Load& l = d.load;
  nlohmann::json path;
  for (size_t i = 0; i < kCauses; ++i) path[cause_names(o)[i]] = o.critical_path[i];
  return {{"cluster",
           {{"workers", c.workers},
            {"ps", c.ps},
            {"shards", c.shards},
            {"workers_per_host", c.workers_per_host},
            {"ps_per_host", c.ps_per_host},
            {"rails", c.rails},
            {"nic_gbit", c.nic_gbit},
            {"ps_nic_gbit", c.ps_nic_gbit > 0 ? c.ps_nic_gbit : c.nic_gbit},
            {"rtt_us", c.rtt_us},
            {"oversubscription", c.oversubscription},
            {"hosts_per_leaf", c.hosts_per_leaf},
            {"loss", c.loss},
            {"mtu", c.mtu},
            {"unfairness", c.unfairness},
            {"queue_kib", c.queue_kib},
            {"packets_per_ack", c.packets_per_ack},
            {"frame_bytes", c.frame_bytes}}},
          {"load",
           {{"model_bytes", l.bytes},
            {"buckets", o.buckets},
            {"bucket_bytes", l.bucket_bytes},
            {"mode", mode_text(l.mode)},
            {"push", push_format_name(l.push)},
            {"return", return_format_name(l.returns)},
            {"compute_ms", l.compute_ms},
            {"compute_sigma", l.compute_sigma},
            {"slow_workers", l.slow_workers},
            {"slowdown", l.slowdown},
            {"steps", l.steps},
            {"seed", l.seed}}},
          {"costs",
           {{"message_us", d.costs.message_us},
            {"send_ns_per_byte", d.costs.send_ns_per_byte},
            {"receive_ns_per_byte", d.costs.receive_ns_per_byte},
            {"wake_us", d.costs.wake_us},
            {"apply_us", d.costs.apply_us},
            {"apply_ns_per_byte", d.costs.apply_ns_per_byte},
            {"gradient_ns_per_byte", d.costs.gradient_ns_per_byte},
            {"pack_ns_per_byte", d.costs.pack_ns_per_byte},
            {"memory_gb_per_s", d.costs.memory_gb_per_s},
            {"sources", d.costs.sources}}},
          {"bytes_into_shard", o.bytes_into_shard},
          {"step_time_s", step_times(o)},
          {"exchange_time_s", {{"median", o.exchange_s_median}, {"p99", o.exchange_s_p99}}},
          {"steps_per_s", o.steps_per_s},
          {"updates_per_s", o.updates_per_s},
          {"dropped_share", o.dropped_share},
          {"share_of_line_rate", o.shard_nic},
          {"bottleneck", o.bottleneck},
          {"utilization",
           {{"shard_nic", o.shard_nic},
            {"worker_nic", o.worker_nic},
            {"switch", o.fabric},
            {"shard_cpu", o.shard_cpu},
            {"shard_memory", o.shard_memory},
            {"worker_cpu", o.worker_cpu},
            {"compute", o.compute}}},
          {"critical_path", path},
          {"simulated_workers", o.simulated_workers},
          {"events", o.events},
          {"simulated_s", o.simulated_s}};
}

void print_goodput(const char* which, const Failures& failures, const Goodput& g) {
  fmt::print(
      "    {}: goodput {:.5f} of the steps ({:.4g} steps/s) in the mean, 5th percentile {:.5f}, worst run {:.5f}; in "
      "{} h {:.1f} failures, "
      "{:.2f} "
      "returns to a checkpoint, {:.1f} lost steps, {:.0f} s stalled, {:.4f} of the gradients absent\n",
      which, g.share, g.steps_per_s, g.share_p5, g.share_min, failures.run_hours, g.failures, g.returns, g.lost_steps,
      g.stalled_s, g.absent);
}

bool has(const std::vector<std::string>& texts, const std::string& text) {
  return std::find(texts.begin(), texts.end(), text) != texts.end();
}

/// The values that all points of a sweep have in common. A value is a member of a part of the description, or a
/// function of the description.
class Common {
 public:
  explicit Common(const std::vector<Description>& points) : points_(points) {}

  /// The value as a text; "…": the points have different ones.
  template <typename Value>
  std::string operator()(Value value, const char* form = "{}") const {
    const auto text = [&](const Description& d) { return fmt::format(fmt::runtime(form), of(d, value)); };
    const std::string first = text(points_.front());
    const bool is_common =
        std::all_of(points_.begin(), points_.end(), [&](const Description& d) { return text(d) == first; });
    return is_common ? first : "…";
  }

  /// A point has another value than the default.
  template <typename Value>
  bool has_other(Value value) const {
    const Description usual;
    return std::any_of(points_.begin(), points_.end(),
                       [&](const Description& d) { return of(d, value) != of(usual, value); });
  }

 private:
  template <typename Type>
  static Type of(const Description& d, Type Cluster::*value) {
    return d.cluster.*value;
  }
  template <typename Type>
  static Type of(const Description& d, Type Costs::*value) {
    return d.costs.*value;
  }
  template <typename Type>
  static Type of(const Description& d, Type Load::*value) {
    return d.load.*value;
  }
  template <typename Type>
  static Type of(const Description& d, Type Failures::*value) {
    return d.failures.*value;
  }
  template <typename Function>
  static auto of(const Description& d, Function value) -> decltype(value(d)) {
    return value(d);
  }

  const std::vector<Description>& points_;
};

}  // namespace

nlohmann::json to_json(const Description& d, const Prediction& p) {
  nlohmann::json json = outcome_json(d, p.outcome);
  if (!p.without_backup || !p.with_backup) return json;
  const Failures& f = d.failures;
  json["failures"] = {{"mtbf_hours", f.mtbf_hours},
                      {"detect_s", f.detect_s},
                      {"restart_s", f.restart_s},
                      {"takeover_s", f.takeover_s},
                      {"save_secs", f.save_secs},
                      {"save_cost_s", f.save_cost_s},
                      {"best_save_secs", best_save_s(d)},
                      {"run_hours", f.run_hours},
                      {"runs", f.runs},
                      {"without_backup", goodput_json(*p.without_backup)},
                      {"with_backup", goodput_json(*p.with_backup)}};
  return json;
}

void print_assumptions(const std::vector<Description>& points) {
  const Common in(points);
  fmt::print("# {} workers ({} a host), {} ps ({} a host) of {} shards, {} x {} Gbit/s, rtt {} us",
             in(&Cluster::workers), in(&Cluster::workers_per_host), in(&Cluster::ps), in(&Cluster::ps_per_host),
             in(&Cluster::shards), in(&Cluster::rails), in(&Cluster::nic_gbit), in(&Cluster::rtt_us));
  if (in.has_other(&Cluster::ps_nic_gbit)) fmt::print(", ps {} Gbit/s", in(&Cluster::ps_nic_gbit));
  if (in.has_other(&Cluster::oversubscription))
    fmt::print(", leaf switches of {} hosts {}:1 oversubscribed", in(&Cluster::hosts_per_leaf),
               in(&Cluster::oversubscription));
  if (in.has_other(&Cluster::loss)) fmt::print(", loss {}", in(&Cluster::loss));
  if (in.has_other(&Cluster::unfairness)) fmt::print(", unfairness {}", in(&Cluster::unfairness));
  if (in.has_other(&Cluster::queue_kib)) fmt::print(", queues of {} KiB", in(&Cluster::queue_kib));
  fmt::print("\n# model {} bytes, buckets {} KiB, {}, push {}, return {}, compute {} ms (sigma {}), {} slow workers",
             in(&Load::bytes), in([](const Description& d) { return d.load.bucket_bytes / 1024; }),
             in([](const Description& d) { return mode_text(d.load.mode); }),
             in([](const Description& d) { return push_format_name(d.load.push); }),
             in([](const Description& d) { return return_format_name(d.load.returns); }), in(&Load::compute_ms),
             in(&Load::compute_sigma), in(&Load::slow_workers));
  if (in.has_other(&Load::seed)) fmt::print(", seed {}", in(&Load::seed));
  fmt::print(
      "\n# costs: message {} us, bytes {} and {} ns, wake-up {} us, apply {} + {} ns x gradients for each byte, pack "
      "{} "
      "ns, memory {} GB/s\n",
      in(&Costs::message_us, "{:.2f}"), in(&Costs::send_ns_per_byte, "{:.3f}"),
      in(&Costs::receive_ns_per_byte, "{:.3f}"), in(&Costs::wake_us), in(&Costs::apply_ns_per_byte, "{:.4f}"),
      in(&Costs::gradient_ns_per_byte, "{:.4f}"), in(&Costs::pack_ns_per_byte, "{:.3f}"), in(&Costs::memory_gb_per_s));
  for (const std::string& source : points.front().costs.sources) {
    if (std::all_of(points.begin(), points.end(), [&](const Description& d) { return has(d.costs.sources, source); }))
      fmt::print("# {}\n", source);
  }
  if (!in.has_other(&Failures::mtbf_hours)) return;
  const std::string saves =
      in(&Failures::save_secs) == "0"
          ? "no saves"
          : fmt::format("saves each {} s cost {} s", in(&Failures::save_secs), in(&Failures::save_cost_s, "{:.3g}"));
  fmt::print(
      "# a host fails each {} h; noticed after {} s, restarted after {} s more, taken over after {} s; {}; {} runs\n",
      in(&Failures::mtbf_hours), in(&Failures::detect_s), in(&Failures::restart_s), in(&Failures::takeover_s), saves,
      in(&Failures::runs));
}

void print_header() {
  fmt::print("# {:<26} {:>11} {:>11} {:>11} {:>9} {:>9} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7}  {}\n", "", "step ms",
             "99% ms", "exchange ms", "steps/s", "line rate", "worker", "switch", "cpu", "memory", "w.cpu", "compute",
             "bottleneck");
}

void print_row(const std::string& label, const Description& d, const Prediction& p) {
  const Outcome& o = p.outcome;
  fmt::print(
      "  {:<26} {:>11.3f} {:>11.3f} {:>11.3f} {:>9.2f} {:>9.3f} {:>7.2f} {:>7.2f} {:>7.2f} {:>7.2f} {:>7.2f} "
      "{:>7.2f}  {}\n",
      label, o.step_s_median * 1e3, o.step_s_p99 * 1e3, o.exchange_s_median * 1e3, o.steps_per_s, o.shard_nic,
      o.worker_nic, o.fabric, o.shard_cpu, o.shard_memory, o.worker_cpu, o.compute, o.bottleneck);
  if (p.without_backup) {
    print_goodput("without a backup ps", d.failures, *p.without_backup);
    const double best_s = best_save_s(d);
    fmt::print("    best time between two saves without a backup ps: {:.{}f} s\n", best_s, best_s < 10 ? 3 : 0);
  }
  if (p.with_backup) print_goodput("with a backup ps", d.failures, *p.with_backup);
}

}  // namespace gradrail::bench::predict
