#include "bench/predict/output.h"

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
            {"nic_gbit", c.nic_gbit},
            {"rtt_us", c.rtt_us}}},
          {"load",
           {{"model_bytes", l.bytes},
            {"buckets", o.buckets},
            {"bucket_bytes", l.bucket_bytes},
            {"mode", mode_text(l.mode)},
            {"push", push_format_name(l.push)},
            {"return", return_format_name(l.returns)},
            {"compute_ms", l.compute_ms},
            {"compute_sigma", l.compute_sigma},
            {"steps", kSteps}}},
          {"costs",
           {{"message_us", d.costs.message_us},
            {"send_ns_per_byte", d.costs.send_ns_per_byte},
            {"receive_ns_per_byte", d.costs.receive_ns_per_byte},
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
            {"shard_cpu", o.shard_cpu},
            {"shard_memory", o.shard_memory},
            {"worker_cpu", o.worker_cpu},
            {"compute", o.compute}}},
          {"critical_path", path},
          {"simulated_workers", o.simulated_workers}};
}

void print_goodput(const char* which, const Failures& failures, const Goodput& g) {
  fmt::print("{}: goodput {:.5f} of the steps ({:.4g} steps/s) in the mean, 5th percentile {:.5f}, worst run {:.5f}\n",
             which, g.share, g.steps_per_s, g.share_p5, g.share_min);
  fmt::print(
      "  in {} h {:.1f} failures, {:.2f} returns to a checkpoint, {:.1f} lost steps, {:.0f} s stalled, {:.4f} of "
      "the gradients absent\n",
      failures.run_hours, g.failures, g.returns, g.lost_steps, g.stalled_s, g.absent);
}

void print_failures(const Description& d, const Goodput& without_backup, const Goodput& with_backup) {
  const Failures& f = d.failures;
  fmt::print(
      "# a host fails each {} h; noticed after {} s, restarted after {} s more, taken over after {} s; saves each {} "
      "s cost {:.3g} s; {} runs\n",
      f.mtbf_hours, f.detect_s, f.restart_s, f.takeover_s, f.save_secs, f.save_cost_s, f.runs);
  print_goodput("without a backup ps", f, without_backup);
  const double best_s = best_save_s(d);
  fmt::print("  best time between two saves: {:.{}f} s\n", best_s, best_s < 10 ? 3 : 0);
  print_goodput("with a backup ps", f, with_backup);
}

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

void print(const Description& d, const Prediction& p) {
  const Cluster& c = d.cluster;
  const Load& l = d.load;
  const Outcome& o = p.outcome;
  fmt::print("# {} workers ({} a host), {} ps of {} shards, {} Gbit/s, rtt {} us\n", c.workers, c.workers_per_host,
             c.ps, c.shards, c.nic_gbit, c.rtt_us);
  fmt::print("# model {} bytes, buckets {} KiB, {}, push {}, return {}, compute {} ms (sigma {})\n", l.bytes,
             l.bucket_bytes / 1024, mode_text(l.mode), push_format_name(l.push), return_format_name(l.returns),
             l.compute_ms, l.compute_sigma);
  fmt::print(
      "# costs: message {:.2f} us, bytes {:.3f} and {:.3f} ns, apply {:.4f} + {:.4f} ns x gradients for each byte, "
      "pack "
      "{:.3f} ns, memory {} GB/s\n",
      d.costs.message_us, d.costs.send_ns_per_byte, d.costs.receive_ns_per_byte, d.costs.apply_ns_per_byte,
      d.costs.gradient_ns_per_byte, d.costs.pack_ns_per_byte, d.costs.memory_gb_per_s);
  for (const std::string& source : d.costs.sources) fmt::print("# {}\n", source);
  fmt::print("step           {:.3f} ms, 99 % {:.3f} ms\n", o.step_s_median * 1e3, o.step_s_p99 * 1e3);
  fmt::print("exchange       {:.3f} ms, 99 % {:.3f} ms\n", o.exchange_s_median * 1e3, o.exchange_s_p99 * 1e3);
  fmt::print("throughput     {:.4g} steps/s of a worker, {:.4g} updates/s of the model\n", o.steps_per_s,
             o.updates_per_s);
  if (o.dropped_share > 0) fmt::print("late           {:.4f} of the gradients\n", o.dropped_share);
  fmt::print("bottleneck     {}\n", o.bottleneck);
  fmt::print("critical path ");
  for (size_t i = 0; i < kCauses; ++i)
    fmt::print(" {} {:.2f}{}", cause_names(o)[i], o.critical_path[i], i + 1 < kCauses ? "," : "\n");
  fmt::print(
      "utilization    shard NIC {:.3f}, shard CPU {:.2f}, shard memory {:.2f}, worker NIC {:.2f}, worker CPU {:.2f}, "
      "compute {:.2f}\n",
      o.shard_nic, o.shard_cpu, o.shard_memory, o.worker_nic, o.worker_cpu, o.compute);
  if (p.without_backup && p.with_backup) print_failures(d, *p.without_backup, *p.with_backup);
}

}  // namespace gradrail::bench::predict
