#include "bench/predict/options.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "CLI/CLI.hpp"
#include "base/flags/number_in.h"
#include "base/flags/text_value.h"
#include "base/parse_number.h"
#include "base/status.h"
#include "bench/driver/harness.h"
#include "bench/driver/options.h"
#include "bench/predict/cost_file.h"
#include "bench/predict/sweep.h"
#include "bench/suites/layer_list.h"
#include "fmt/format.h"
#include "ps/protocol/optimizer_settings.h"
#include "ps/protocol/shard_map.h"

namespace gradrail::bench::predict {
namespace {

constexpr uint32_t kMostTasks = 65'536;
constexpr uint32_t kMostShards = 64;  // of a ps process, as in training

void add_cluster_options(CLI::App& app, Cluster& cluster) {
  app.option_defaults()->group("Cluster");
  app.add_option("--workers", cluster.workers, "workers")->transform(NumberIn(1u, kMostTasks))->capture_default_str();
  app.add_option("--ps", cluster.ps, "ps processes")->transform(NumberIn(1u, kMostTasks))->capture_default_str();
  app.add_option("--shards", cluster.shards, "shards of each ps process")
      ->transform(NumberIn(1u, kMostShards))
      ->capture_default_str();
  app.add_option("--workers_per_host,--workers-per-host", cluster.workers_per_host,
                 "workers that share a host and its NICs")
      ->transform(NumberIn(1u, 1024u))
      ->capture_default_str();
  app.add_option("--ps_per_host,--ps-per-host", cluster.ps_per_host, "ps processes that share a host and its NICs")
      ->transform(NumberIn(1u, 1024u))
      ->capture_default_str();
  app.option_defaults()->group("Network");
  app.add_option("--rails", cluster.rails, "NICs of each host")->transform(NumberIn(1u, 16u))->capture_default_str();
  app.add_option("--nic", cluster.nic_gbit, "rate of a NIC in each direction, in Gbit/s")
      ->transform(NumberIn(1e-3, 1e5))
      ->capture_default_str();
  app.add_option("--ps_nic,--ps-nic", cluster.ps_nic_gbit, "the same for hosts of ps processes; default: --nic")
      ->transform(NumberIn(1e-3, 1e5));
  app.add_option("--rtt", cluster.rtt_us, "round trip between two hosts without load, in microseconds")
      ->transform(NumberIn(0.0, 1e7))
      ->capture_default_str();
  app.add_option("--oversubscription", cluster.oversubscription,
                 "rate of the hosts of a leaf switch / rate of its links to the spine; 1: no limit")
      ->transform(NumberIn(1.0, 1000.0))
      ->capture_default_str();
  app.add_option("--hosts_per_leaf,--hosts-per-leaf", cluster.hosts_per_leaf, "hosts of a leaf switch")
      ->transform(NumberIn(1u, 4096u))
      ->capture_default_str();
  app.add_option("--loss", cluster.loss, "share of the packets that are lost")
      ->transform(NumberIn(0.0, 0.5))
      ->capture_default_str();
  app.add_option("--mtu", cluster.mtu, "bytes of an IP packet")
      ->transform(NumberIn(576u, 65'535u))
      ->capture_default_str();
  app.add_option("--unfairness", cluster.unfairness,
                 "spread of the shares of connections on a link: sigma of a lognormal distribution; 0: equal shares")
      ->transform(NumberIn(0.0, 3.0))
      ->capture_default_str();
  app.add_option(
         "--queue_kib,--queue-kib", cluster.queue_kib,
         "tcp: KiB of the queue of a NIC or switch port, which the connections fill; acknowledgments wait in it; "
         "0: they do not wait")
      ->transform(NumberIn(0u, 1u << 20))
      ->capture_default_str();
  app.add_option("--packets_per_ack,--packets-per-ack", cluster.packets_per_ack,
                 "packets of TCP that one acknowledgment confirms; a NIC that joins packets (GRO) has more than 2")
      ->transform(NumberIn(1.0, 1e6))
      ->capture_default_str();
  app.add_option("--frame_bytes,--frame-bytes", cluster.frame_bytes,
                 "bytes around an IP packet; 38 on Ethernet, 14 in the accounts of tc")
      ->transform(NumberIn(0u, 1000u))
      ->capture_default_str();
}

void add_load_options(CLI::App& app, PredictFlags& flags) {
  app.option_defaults()->group("Training");
  app.add_option("--model", flags.model,
                 "fp32 bytes of the model (K, M, G may follow), or a layer list of bench replay")
      ->capture_default_str();
  app.add_option("--bucket_kib,--bucket-kib", flags.bucket_kib,
                 "size of a bucket in KiB; 0: the default of a worker, by the size of a shard")
      ->transform(NumberIn(0u, kMaxBucketKib))
      ->capture_default_str();
  app.add_option("--slot_mib,--slot-mib", flags.slot_mib,
                 "places for gradients of a worker at a shard; 0: for each bucket")
      ->transform(NumberIn(0u, 1u << 20))
      ->capture_default_str();
  app.add_option("--mode", flags.mode, "async, sync, ssp:K or quorum:K, as for train")
      ->transform(accepted_by(parse_mode))
      ->capture_default_str();
  app.add_option("--push", flags.push, "elements of a gradient on its way")
      ->transform(accepted_by(parse_push_format))
      ->capture_default_str();
  app.add_option("--return", flags.returns, "parameters on their way back")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  app.add_option("--compute_ms,--compute-ms", flags.compute_ms,
                 "time of a step without exchange; default: that of the layer list, else 0")
      ->transform(NumberIn(0.0, 1e7));
  app.add_option("--compute_sigma,--compute-sigma", flags.load.compute_sigma,
                 "spread of the compute time: sigma of a lognormal distribution")
      ->transform(NumberIn(0.0, 3.0))
      ->capture_default_str();
  app.add_option("--slow_workers,--slow-workers", flags.load.slow_workers, "workers with --slowdown")
      ->transform(NumberIn(0u, kMostTasks))
      ->capture_default_str();
  app.add_option("--slowdown", flags.load.slowdown, "factor of their compute time")
      ->transform(NumberIn(1.0, 1000.0))
      ->capture_default_str();
  app.add_option("--steps", flags.load.steps,
                 "steps of each worker that count; at most, with more than 256 equal workers")
      ->transform(NumberIn(1u, 1'000'000u))
      ->capture_default_str();
  app.add_option("--warmup", flags.load.warmup, "steps before them")
      ->transform(NumberIn(0u, 1'000'000u))
      ->capture_default_str();
  app.add_option("--seed", flags.load.seed, "of compute times and losses")
      ->transform(NumberIn<uint64_t>())
      ->capture_default_str();
}

void add_cost_options(CLI::App& app, PredictFlags& flags) {
  app.option_defaults()->group("Costs");
  app.add_option("--costs", flags.costs,
                 "files of `bench apply -J` and `bench exchange -J` of a machine; default: figures of bench/results");
  app.add_option("--optimizer", flags.optimizer, "optimizer of the rows of `bench apply`")
      ->check(CLI::IsMember({"sgd", "momentum", "nesterov", "adam"}))
      ->capture_default_str();
  app.add_option("--transport", flags.transport, "tcp: threads copy the bytes; rdma: NICs do")
      ->check(CLI::IsMember({"tcp", "rdma"}))
      ->capture_default_str();
  app.add_option("--message_us,--message-us", flags.message_us, "replaces the time of a thread for a message")
      ->transform(NumberIn(0.0, 1e6));
  app.add_option("--wake_us,--wake-us", flags.wake_us, "replaces the time to wake a thread without work")
      ->transform(NumberIn(0.0, 1e6));
  app.add_option("--memory", flags.memory_gb_per_s, "replaces the memory bandwidth of a ps host, in GB/s")
      ->transform(NumberIn(0.1, 1e6));
}

void add_failure_options(CLI::App& app, PredictFlags& flags) {
  Failures& failures = flags.failures;
  app.option_defaults()->group("Failures");
  app.add_option("--mtbf", failures.mtbf_hours, "mean time between failures of a host, in hours; 0: no failures")
      ->transform(NumberIn(0.0, 1e9))
      ->capture_default_str();
  // Not needs(): a sweep may set --mtbf.
  const auto given = [&flags](const char* name) {
    return [&flags, name](const std::string&) { flags.failure_flag = name; };
  };
  app.add_option("--detect_s,--detect-s", failures.detect_s,
                 "from the failure of a host until its tasks count as lost, as --heartbeat-timeout of training")
      ->transform(NumberIn(0.0, 1e6))
      ->each(given("--detect_s"))
      ->capture_default_str();
  app.add_option("--restart_s,--restart-s", failures.restart_s, "from then on until its tasks run again, anywhere")
      ->transform(NumberIn(0.0, 1e6))
      ->each(given("--restart_s"))
      ->capture_default_str();
  app.add_option("--takeover_s,--takeover-s", failures.takeover_s, "from then on until the backup of a ps serves")
      ->transform(NumberIn(0.0, 1e6))
      ->each(given("--takeover_s"))
      ->capture_default_str();
  app.add_option("--save_secs,--save-secs", failures.save_secs, "time between two saves of a checkpoint; 0: no saves")
      ->transform(NumberIn(0.0, 1e7))
      ->each(given("--save_secs"))
      ->capture_default_str();
  app.add_option("--save_cost_s,--save-cost-s", flags.save_cost_s,
                 "for which a save delays the steps; default: a shard reads its parameters and state once")
      ->transform(NumberIn(0.0, 1e6))
      ->each(given("--save_cost_s"));
  app.add_option("--run_hours,--run-hours", failures.run_hours, "length of a run")
      ->transform(NumberIn(0.01, 1e6))
      ->each(given("--run_hours"))
      ->capture_default_str();
  app.add_option("--runs", failures.runs, "runs with random failures, from --seed")
      ->transform(NumberIn(1u, 1'000'000u))
      ->each(given("--runs"))
      ->capture_default_str();
}

/// Threads of the shards copy, each its own shard.
double seconds_of_copy(const PredictFlags& flags, const Description& d) {
  const int vectors = 1 + ps::state_vectors(*parse_optimizer(flags.optimizer));
  return static_cast<double>(d.load.bytes) / d.cluster.shard_count() * vectors * d.costs.gradient_ns_per_byte * 1e-9;
}

/// NICs copy the bytes. Threads make no system call for a message.
void use_rdma(Costs& costs) {
  constexpr double kMessageUs = 0.5;
  costs.send_ns_per_byte = costs.receive_ns_per_byte = 0;
  costs.message_us = kMessageUs;
  std::erase_if(costs.sources, [](const std::string& source) { return source.starts_with("messages, bytes"); });
  costs.sources.emplace_back("rdma: no time for bytes, 0.5 us for a message: assumed, not measured");
}

/// "0.1" and "10%" are equal: rewrites the text as a ratio. Returns the reason why the text is no ratio, or "".
std::string ratio_from(std::string& text) {
  constexpr double kMostErrorPercent = 10'000;
  const bool is_percent = text.ends_with('%');
  const std::optional<double> number =
      parse_number<double>(std::string_view(text).substr(0, text.size() - (is_percent ? 1 : 0)));
  // The comparison with nan is false.
  if (!number || !(*number >= 0 && *number <= (is_percent ? kMostErrorPercent : 1))) {
    return fmt::format("'{}' is neither a ratio from 0 to 1, such as 0.1, nor percent up to {}%, such as 10%", text,
                       kMostErrorPercent);
  }
  text = fmt::format("{}", is_percent ? *number / 100 : *number);
  return "";
}

absl::Status usage(const std::string& flag, const std::string& value, std::string_view why) {
  return absl::InvalidArgumentError(fmt::format("{} {}: {}", flag, value, why));
}

}  // namespace

void add_predict_flags(CLI::App& app, PredictFlags& flags) {
  add_cluster_options(app, flags.cluster);
  add_load_options(app, flags);
  add_cost_options(app, flags);
  add_failure_options(app, flags);
  app.option_defaults()->group("Output");
  app.add_flag("--json", flags.json, "print JSON");
  app.add_option(
         "--sweep", flags.sweep,
         "a row for each value of a flag: workers=1:4096:*2, nic=25:100:+25 or mode=sync,async; may be repeated")
      ->transform(accepted_by(parse_sweep));
  CLI::Option* const check = app.add_option(
      "--check", flags.check, "compare with a run of `bench exchange -J` or `bench incast -J`; the file has the load");
  for (const char* const of_file :
       {"--workers", "--ps", "--shards", "--model", "--mode", "--push", "--return", "--optimizer", "--bucket_kib",
        "--compute_ms", "--compute_sigma", "--slow_workers", "--slowdown", "--sweep"})
    check->excludes(app.get_option(of_file));
  app.add_option("--tolerance", flags.tolerance,
                 "--check: relative error of the median up to which the exit code is 0; a ratio such as 0.1, or 10%")
      ->transform(CLI::Validator(ratio_from, "0..1 or PERCENT%"))
      ->needs(check)
      ->capture_default_str();
}

absl::Status set_value(const std::string& name, const std::string& value, PredictFlags& flags) {
  // A parser of its own: it has the ranges and the messages of the command line.
  CLI::App app;
  PredictFlags changed = flags;
  add_predict_flags(app, changed);
  const CLI::Option* const option = app.get_option_no_throw("--" + name);
  const std::string group = option == nullptr ? "" : option->get_group();
  constexpr std::array kSwept = {"Cluster", "Network", "Training", "Costs", "Failures"};
  // A file of costs would be one more beside those of the command line.
  if (std::find(kSwept.begin(), kSwept.end(), group) == kSwept.end() || option == app.get_option("--costs"))
    return absl::InvalidArgumentError(
        fmt::format("--sweep {}={}: '{}' has no value to sweep; name a flag of a cluster, a network, a training, a "
                    "cost or failures (--help)",
                    escaped(name), escaped(value), escaped(name)));
  try {
    app.parse(std::vector<std::string>{"--" + name + "=" + value});
  } catch (const CLI::ParseError& error) {  // CLI11's only way to say it
    return absl::InvalidArgumentError(fmt::format("--sweep {}={}: {}", name, value, escaped(error.what())));
  }
  flags = std::move(changed);
  return absl::OkStatus();
}

absl::StatusOr<Description> description_of(const PredictFlags& flags) {
  Description d{.cluster = flags.cluster, .costs = {}, .load = flags.load, .failures = flags.failures};
  Load& load = d.load;
  GRADRAIL_ASSIGN_OR_RETURN(load.mode, parse_mode(flags.mode));
  GRADRAIL_ASSIGN_OR_RETURN(load.push, parse_push_format(flags.push));
  GRADRAIL_ASSIGN_OR_RETURN(load.returns, parse_return_format(flags.returns));
  load.slot_bytes = uint64_t{flags.slot_mib} << 20;
  load.compute_ms = std::max(0.0, flags.compute_ms);
  load.bytes = parse_size(flags.model);
  if (load.bytes == 0) {
    std::error_code error;
    const std::filesystem::file_status file = std::filesystem::status(flags.model, error);
    if (exists(file) && !is_regular_file(file) && !is_directory(file))
      return usage("--model", flags.model, "is no regular file, and each point of a sweep reads it again; give a file");
    const absl::StatusOr<LayerList> list = read_layer_list(flags.model);
    if (!list.ok())
      return usage("--model", flags.model, fmt::format("is no number of bytes, and {}", message_of(list.status())));
    load.layers = list->layers;
    load.bytes = list->bytes();
    if (flags.compute_ms < 0) load.compute_ms = load.layers.back().ready_us * 1e-3;
  }
  load.bucket_bytes = flags.bucket_kib > 0 ? flags.bucket_kib * 1024
                                           : ps::ShardMap::default_bucket_bytes(
                                                 load.bytes / sizeof(float), std::max(1u, flags.cluster.shard_count()));
  d.costs = recorded_costs(load.push);
  for (const std::string& file : flags.costs) {
    GRADRAIL_RETURN_IF_ERROR(read_costs(file, flags.optimizer, load.push, d.costs));
    const bool has_apply = std::ranges::find(d.costs.sources, fmt::format("apply: {}", file)) != d.costs.sources.end();
    if (flags.transport == "rdma" && !has_apply)
      return usage("--costs", file, "--transport rdma needs no times of tcp; omit it, or give a file of `bench apply`");
  }
  if (flags.transport == "rdma" && flags.cluster.queue_kib > 0)
    return usage("--queue_kib", std::to_string(flags.cluster.queue_kib),
                 "--transport rdma has no acknowledgments of TCP; omit one of the flags");
  if (flags.transport == "rdma") use_rdma(d.costs);
  if (flags.message_us >= 0) d.costs.message_us = flags.message_us;
  if (flags.wake_us >= 0) d.costs.wake_us = flags.wake_us;
  if (flags.memory_gb_per_s > 0) d.costs.memory_gb_per_s = flags.memory_gb_per_s;
  d.failures.save_cost_s = flags.save_cost_s >= 0 ? flags.save_cost_s : seconds_of_copy(flags, d);
  GRADRAIL_RETURN_IF_ERROR(validate(d));
  return d;
}

}  // namespace gradrail::bench::predict
