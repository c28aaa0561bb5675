#include "bench/predict/options.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "CLI/CLI.hpp"
#include "base/flags/number_in.h"
#include "base/flags/text_value.h"
#include "base/status.h"
#include "bench/driver/harness.h"
#include "bench/driver/options.h"
#include "bench/predict/cost_file.h"
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
                 "workers that share a host and its NIC")
      ->transform(NumberIn(1u, 1024u))
      ->capture_default_str();
  app.option_defaults()->group("Network");
  app.add_option("--nic", cluster.nic_gbit, "rate of a NIC in each direction, in Gbit/s")
      ->transform(NumberIn(1e-3, 1e5))
      ->capture_default_str();
  app.add_option("--rtt", cluster.rtt_us, "round trip between two hosts without load, in microseconds")
      ->transform(NumberIn(0.0, 1e7))
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
  app.add_option("--compute_sigma,--compute-sigma", flags.compute_sigma,
                 "spread of the compute time: sigma of a lognormal distribution")
      ->transform(NumberIn(0.0, 3.0))
      ->capture_default_str();
}

void add_cost_options(CLI::App& app, PredictFlags& flags) {
  app.option_defaults()->group("Costs");
  app.add_option("--costs", flags.costs,
                 "files of `bench apply -J` and `bench exchange -J` of a machine; default: figures of bench/results");
  app.add_option("--optimizer", flags.optimizer,
                 "optimizer of the rows of `bench apply`, and of the state that a save copies")
      ->check(CLI::IsMember({"sgd", "momentum", "nesterov", "adam"}))
      ->capture_default_str();
  app.add_option("--transport", flags.transport, "tcp: threads copy the bytes; rdma: NICs do")
      ->check(CLI::IsMember({"tcp", "rdma"}))
      ->capture_default_str();
}

void add_failure_options(CLI::App& app, PredictFlags& flags) {
  Failures& failures = flags.failures;
  app.option_defaults()->group("Failures");
  CLI::Option* const mtbf = app.add_option("--mtbf", failures.mtbf_hours,
                                           "mean time between failures of a host, in hours; default: no failures")
                                ->transform(NumberIn(1e-3, 1e9));
  app.add_option("--restart_s,--restart-s", failures.restart_s,
                 "from the moment when a failed host counts as lost until its tasks run again, anywhere")
      ->transform(NumberIn(0.0, 1e6))
      ->needs(mtbf)
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
  CLI::Option* const check = app.add_option(
      "--check", flags.check,
      "compare with a run of `bench exchange -J` or `bench incast -J`, which has the load; exit code 1 if a median "
      "differs by more than 10 %");
  for (const char* const of_file : {"--workers", "--ps", "--shards", "--model", "--mode", "--push", "--return",
                                    "--optimizer", "--bucket_kib", "--compute_ms", "--compute_sigma", "--mtbf"})
    check->excludes(app.get_option(of_file));
}

absl::StatusOr<Description> description_of(const PredictFlags& flags) {
  Description d{.cluster = flags.cluster, .costs = {}, .load = {}, .failures = flags.failures};
  Load& load = d.load;
  GRADRAIL_ASSIGN_OR_RETURN(load.mode, parse_mode(flags.mode));
  GRADRAIL_ASSIGN_OR_RETURN(load.push, parse_push_format(flags.push));
  GRADRAIL_ASSIGN_OR_RETURN(load.returns, parse_return_format(flags.returns));
  load.compute_ms = std::max(0.0, flags.compute_ms);
  load.compute_sigma = flags.compute_sigma;
  load.bytes = parse_size(flags.model);
  if (load.bytes == 0) {
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
  if (flags.transport == "rdma") use_rdma(d.costs);
  d.failures.save_cost_s = seconds_of_copy(flags, d);
  GRADRAIL_RETURN_IF_ERROR(validate(d));
  return d;
}

}  // namespace gradrail::bench::predict
