#include "bench/suites/exchange_flags.h"

#include <algorithm>

#include "CLI/CLI.hpp"
#include "base/flags/number_in.h"
#include "base/flags/text_value.h"
#include "base/status.h"
#include "bench/cluster/rank_coordinator.h"
#include "fmt/format.h"
#include "launch/launcher/launcher.h"
#include "ps/protocol/training.h"
#include "topology/pin.h"
#include "transport/rails/rails_setting.h"

namespace gradrail::bench {
namespace {

// Each worker is a process that is forked here; the list of children in bench/driver/children.cc has 512 places.
constexpr uint32_t kMaxBenchWorkers = 256;

}  // namespace

void ExchangeOptions::add_flags(CLI::App& app) {
  app.option_defaults()->group("Training");
  app.add_option("--workers", workers, "worker processes")->transform(NumberIn(1u, kMaxBenchWorkers));
  app.add_option("--shards", shards, "shards of the parameter server")
      ->transform(NumberIn(1u, kMaxShards))
      ->capture_default_str();
  app.add_option("--mode", mode, "sync, async or ssp:K")->transform(accepted_by(parse_mode));
  app.add_option("--optimizer", optimizer, "sgd, momentum, nesterov or adam")
      ->check(CLI::IsMember({"sgd", "momentum", "nesterov", "adam"}))
      ->capture_default_str();
  app.add_option("--push", push, "elements of a gradient on its way, as in training")
      ->transform(accepted_by(parse_push_format))
      ->capture_default_str();
  app.add_option("--return", returns, "parameters on their way back")
      ->check(CLI::IsMember(return_format_names()))
      ->capture_default_str();
  app.add_option("--bucket_kib", bucket_kib, "size of a bucket in KiB; 0: the default of the client")
      ->transform(NumberIn(0u, kMaxBucketKib))
      ->capture_default_str();
  app.option_defaults()->group("Transport");
  app.add_option("--rails", rails, "tcp: addresses of the server's links, over which the buckets are striped")
      ->transform(accepted_by(transport::rails::parse_rails));
  app.add_option("--streams", streams, "tcp: connections on each rail; auto: by the speed of the link")
      ->transform(accepted_by(transport::rails::parse_streams));
  app.option_defaults()->group("Measurement");
  app.add_flag("--stages,!--no-stages", stages, "measure the stages in a second run (default of exchange), or do not");
  app.add_flag("--no-sum,--no_sum", no_sum, "omit the sum (one gradient stands for all)");
  app.add_flag("--no-optimizer,--no_optimizer", no_optimizer, "omit the optimizer (the mean is stored)");
  app.add_flag("--no-return,--no_return", no_return, "omit the parameters in the answer");
  app.add_flag("--encrypt-data,--encrypt_data", encrypt_data,
               "also measure tcp with encrypted data, in turns with tcp");
  app.add_flag("--touch", touch, "workers write their gradients before each exchange (not timed)");
}

void DistributedOptions::add_flags(CLI::App& app) {
  exchange.add_flags(app);
  cluster.add_flags(app);
}

absl::StatusOr<ExchangeLoad> load_of(const Options& options, const ExchangeOptions& own, uint32_t default_workers,
                                     const char* default_mode) {
  GRADRAIL_RETURN_IF_ERROR(transport::rails::check_lanes(own.rails, own.streams));
  GRADRAIL_ASSIGN_OR_RETURN(const Mode mode, parse_mode(own.mode.empty() ? default_mode : own.mode));
  if (mode.drops())
    return absl::InvalidArgumentError(
        fmt::format("--mode {}: which gradients a step has is chance, and results are checked", mode_text(mode)));
  GRADRAIL_ASSIGN_OR_RETURN(const OptimizerKind optimizer, parse_optimizer(own.optimizer));
  GRADRAIL_ASSIGN_OR_RETURN(const PushFormat push, parse_push_format(own.push));
  if (push != PushFormat::fp32 && (own.no_sum || own.no_optimizer))
    return absl::InvalidArgumentError(fmt::format("--push {}: --no-sum and --no-optimizer measure fp32", own.push));
  // Pushes of one worker differ. The order of the updates decides the result.
  if (push.kind == PushFormat::topk && options.check && !mode.sums())
    return absl::InvalidArgumentError(fmt::format(
        "--push {} --mode {}: results are checked in mode sync only (-c 0 does not check)", own.push, mode_text(mode)));
  GRADRAIL_ASSIGN_OR_RETURN(const ReturnFormat returns, parse_return_format(own.returns));
  if (returns != ReturnFormat::fp32 && own.no_return)
    return absl::InvalidArgumentError(fmt::format("--return {}: --no-return measures fp32", own.returns));
  // A launcher has decided the number of workers. A flag that states another number is a mistake, not a wish.
  const uint32_t here = own.workers == 0 ? default_workers : own.workers;
  const RankCoordinator* const coordinator = options.coordinator;
  const uint32_t workers = coordinator == nullptr ? here : static_cast<uint32_t>(coordinator->workers().size());
  if (coordinator != nullptr && own.workers != 0 && own.workers != workers)
    return absl::InvalidArgumentError(fmt::format("--workers {}: there are {} ranks for workers", here, workers));
  // Processes that spin while others of the same run wait for their core make all of it slow.
  const bool oversubscribed =
      coordinator == nullptr
          ? workers + own.shards > static_cast<uint32_t>(std::max(1, topology::usable_cpus().count()))
          : coordinator->oversubscribed(own.shards);
  if (workers > kMaxBenchWorkers)
    return absl::InvalidArgumentError(
        fmt::format("there are {} ranks for workers: at most {}", workers, kMaxBenchWorkers));
  return ExchangeLoad{
      .ofi_provider = options.ofi_provider,
      // Loopback by default: the servers of a bench accept unauthenticated connections (kOpen).
      .bind_host = coordinator != nullptr      ? coordinator->bind_host()
                   : options.bind_host.empty() ? "127.0.0.1"
                                               : options.bind_host,
      .rails = transport::rails::parse_rails(own.rails).value_or(transport::rails::RailsSetting{}).hosts,
      .streams = transport::rails::parse_streams(own.streams).value_or(0),
      .workers = workers,
      .shards = own.shards,
      .coordinator = options.coordinator,
      .mode = mode,
      .optimizer = optimizer,
      .push = push,
      .returns = returns,
      .bucket_bytes = own.bucket_kib * 1024,
      .touch = own.touch,
      .block = options.block || oversubscribed,
      .check = options.check,
      .stages = own.stages,
      .ablation = {own.no_sum, own.no_optimizer, own.no_return},
      .seconds = options.seconds,
      .iterations = options.iterations,
      .warmup = options.warmup};
}

std::string describe(const ExchangeLoad& load) {
  const std::string without = left_out(load);
  const size_t servers = load.coordinator == nullptr ? 1 : load.coordinator->servers().size();
  return fmt::format("{} worker{}, {}{} shard{}, {}, {}, push {}, return {}, gradient {}, {}{}{}", load.workers,
                     load.workers == 1 ? "" : "s", servers == 1 ? "" : fmt::format("{} servers of ", servers),
                     load.shards, load.shards == 1 ? "" : "s", mode_text(load.mode), optimizer_name(load.optimizer),
                     push_format_name(load.push), return_format_name(load.returns),
                     load.touch ? "written anew each time" : "not touched between exchanges",
                     load.block ? "blocking" : "spinning", without.empty() ? "" : ", NOT CHECKED, without ", without);
}

absl::Status check_memory_of_sizes(ExchangeLoad load, const std::vector<uint64_t>& sizes) {
  load.bytes = sizes.back();
  return check_memory(load, "give a smaller size (-b, -e)");
}

ExchangeLoad with(ExchangeLoad load, const TransportChoice& choice, uint64_t bytes) {
  load.transport = choice.name;
  load.rdma_only = choice.rdma_only;
  load.encrypted = choice.encrypted;
  load.ofi_provider = choice.ofi_provider;
  load.bytes = bytes;
  return load;
}

std::vector<Contestant> exchange_contestants(
    const std::vector<TransportChoice>& choices,
    const std::function<std::vector<Figure>(const TransportChoice& choice, uint64_t bytes)>& measure) {
  std::vector<Contestant> contestants;
  for (const TransportChoice& choice : choices) {
    contestants.push_back({choice.title(), [measure, choice](uint64_t bytes) -> std::vector<Figure> {
                             if (!choice.unusable.empty())
                               return {not_measured(choice.title(), bytes, choice.unusable)};
                             return measure(choice, bytes);
                           }});
  }
  return contestants;
}

std::vector<Contestant> exchange_contestants(const ExchangeLoad& load, const std::vector<TransportChoice>& choices) {
  return exchange_contestants(choices, [load](const TransportChoice& choice, uint64_t bytes) -> std::vector<Figure> {
    return {run_exchange(with(load, choice, bytes)).figure};
  });
}

void add_ranks(const ExchangeLoad& load, const std::vector<TransportChoice>& choices, Report& report) {
  for (const TransportChoice& choice : choices) {
    if (!choice.unusable.empty()) continue;
    // The places of the processes are the same in each run, so that one short run over any transport shows them.
    ExchangeLoad probe = with(load, choice, 4 * sizeof(float) * load.shards);
    probe.iterations = probe.warmup = 1;
    // The probe has no layers, so that it does not wait for a backward pass.
    probe.layers.clear();
    probe.traffic.clear();
    probe.stages = false;
    const ExchangeResult result = run_exchange(probe);
    if (!result.figure.failed.empty()) continue;
    for (const Rank& rank : result.ranks) report.rank(rank);
    return;
  }
}

}  // namespace gradrail::bench
