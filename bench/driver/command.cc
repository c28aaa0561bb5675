#include "bench/driver/command.h"

#include <cstdio>

#include "CLI/CLI.hpp"
#include "base/flags/number_in.h"
#include "base/flags/text_value.h"
#include "base/log.h"
#include "base/net_address.h"
#include "base/output_file.h"
#include "base/status.h"
#include "bench/cluster/rank_coordinator.h"
#include "bench/cluster/ranks.h"
#include "bench/driver/children.h"
#include "bench/driver/jobs.h"
#include "bench/driver/suite.h"
#include "bench/report/report.h"
#include "bench/suites/device_name.h"
#include "bench/suites/exchange_flags.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "transport/plugin_loader.h"
#include "transport/rails/rails_setting.h"

namespace gradrail::bench {
namespace {

// The exit code of wrong flags, as of most programs.
constexpr int kUsage = 2;

void add_put_flags(CLI::App& app, Options& options) {
  app.option_defaults()->group("Measurement");
  app.add_option("--window", options.window, "bandwidth: maximum number of puts between two notices")
      ->transform(NumberIn(2u, 64u))
      ->capture_default_str();
  app.add_flag("--bidirectional", options.bidirectional,
               "bandwidth: both ends put at the same time; algbw is the sum of both directions");
}

void add_on_flag(CLI::App& app, Options& options) {
  app.option_defaults()->group("GPU");
  app.add_option("--on", options.on, "host, or gpu:N")
      ->transform(accepted_by(check_device_name))
      ->capture_default_str();
}

/// For suites that need a GPU. All suites share the options: the other default holds in this subcommand alone.
void add_gpu_flag(CLI::App& app, Options& options, const std::string& about) {
  app.option_defaults()->group("GPU");
  app.add_option("--on", options.on, about + ", gpu:N; default: gpu:0")->transform(accepted_by(gpu_ordinal));
  app.preparse_callback([&options](size_t) { options.on = "gpu:0"; });
}

void add_staged_flags(CLI::App& app, Options& options) {
  add_gpu_flag(app, options, "GPU of the copies to and from host memory");
  app.add_option("--bucket_kib", options.bucket_kib, "size of a copied unit in KiB; 0: the default of the client")
      ->transform(NumberIn(0u, kMaxBucketKib));
}

void add_peers_flags(CLI::App& app, Options& options) {
  add_exchange_flags(app, options);
  app.option_defaults()->group("Measurement");
  app.add_option("--part", options.part, "exchange or put; default: both")->check(CLI::IsMember({"exchange", "put"}));
  app.add_flag("--pin", options.pin, "puts: servers on core 0, clients on core 1");
  app.add_flag("--realtime", options.realtime, "puts: run with real-time priority; needs CAP_SYS_NICE");
}

void add_distributed_flags(CLI::App& app, Options& options) {
  add_exchange_flags(app, options);
  add_cluster_flags(app, options);
}

void add_exchange_suite_flags(CLI::App& app, Options& options) {
  add_distributed_flags(app, options);
  add_on_flag(app, options);
}

void add_paths_flags(CLI::App& app, Options& options) {
  add_distributed_flags(app, options);
  add_gpu_flag(app, options, "GPU of the rows in GPU memory");
}

void add_replay_flags(CLI::App& app, Options& options) {
  app.add_option("file", options.file, "a layer list, or the name of a built-in list; gradrail-report converts traces");
  CLI::Option* const matrix =
      app.add_option("--matrix", options.matrix,
                     "in the place of a list: a file with the bytes of each worker (row) to each shard (column)");
  app.add_option("--line_gbit,--line-gbit", options.line_gbit,
                 "--matrix: rate of a link in each direction in Gbit/s, for the column of_line")
      ->transform(NumberIn(1e-3, 1e5))
      ->needs(matrix);
  add_distributed_flags(app, options);
}

}  // namespace

const std::vector<Suite>& suites() {
  static const std::vector<Suite> list = {
      {"paths", "measure one exchange over each path of this host; print why a path is unusable", add_paths_flags,
       run_paths_suite},
      {"exchange", "measure the whole exchange: push gradients, apply them, return parameters",
       add_exchange_suite_flags, run_exchange_suite},
      {"incast", "measure the bandwidth of each of N workers at one shard", add_distributed_flags, run_incast_suite},
      {"matrix", "measure each pair of ranks alone, and name slow hosts, NICs and links", add_matrix_flags,
       run_matrix_suite},
      {"put", "measure latency and bandwidth of one-sided puts", add_put_flags, run_put_suite},
      {"apply",
       "compare optimizers with the bandwidth of memory, on the host or a GPU",
       add_on_flag,
       run_apply_suite,
       {"-w", "--transport"}},
      {"staged",
       "measure copies between a GPU and the host, bucket by bucket",
       add_staged_flags,
       run_staged_suite,
       {"-n", "-w", "-c", "--transport"}},
      {"replay",
       "replay the backward pass of a model against the real server",
       add_replay_flags,
       run_replay_suite,
       {"-b", "-e", "-f"}},
      {"straggler",
       "measure the effect of a slow worker in each mode",
       add_straggler_flags,
       run_straggler_suite,
       {"-n", "-w", "-c"}},
      {"publish",
       "measure the publishing of weights to readers: time, lag, bytes, a suspended reader",
       add_publish_flags,
       run_publish_suite,
       {"-w", "-c", "--transport"}},
      {"peers", "compare exchanges and puts with other libraries in the same run", add_peers_flags, run_peers_suite},
  };
  return list;
}

namespace {

std::string what_can_be_asked(const std::vector<std::string>& words) {
  std::string list;
  for (const Suite& suite : suites()) list += fmt::format("{}, ", suite.name);
  list.resize(list.size() - 2);
  return fmt::format("{}: one of {} (gradrail bench --help); gradrail-report compares recorded runs",
                     words.empty() ? "a suite is missing" : "no suite is called " + words.front(), list);
}

}  // namespace

void add_bench_flags(CLI::App& command, BenchFlags& flags) {
  for (const Suite& suite : suites()) {
    CLI::App& app = *command.add_subcommand(suite.name, suite.about);
    add_flags(app, flags.options);
    for (const char* flag : suite.refused_flags) app.remove_option(app.get_option(flag));
    if (suite.add_flags != nullptr) suite.add_flags(app, flags.options);
    app.callback([&flags, &suite] { flags.options.suite = suite.name; });
  }
  CLI::App& job = *command.add_subcommand("job", "a job of a run; gradrail itself starts it")->group("");  // hidden
  job.add_option("output", flags.job_output)->required();
  // Ours to say what can be asked: from here on, since subcommands take this over when they are made.
  command.require_subcommand(0, 1);
  command.allow_extras();
  command.callback([&command, &flags] {
    if (command.get_subcommands().empty()) flags.no_suite = command.remaining();
  });
}

namespace {

/// The others measure one host, or compare with programs that start processes of their own.
bool over_several_processes(const std::string& suite) {
  return suite == "exchange" || suite == "incast" || suite == "paths" || suite == "replay" || suite == "matrix";
}

}  // namespace

int run_bench(BenchFlags flags, int argc, char** argv) {
  // Before the first fork: children log under the same name.
  start_log("bench");
  end_children_on_signals();
  if (flags.job_output >= 0) run_job_of_parent(flags.job_output);
  // The arguments as typed are part of the recorded run.
  flags.options.arguments.assign(argv + 1, argv + argc);
  const auto complain = [](const absl::Status& status) {
    fmt::print(stderr, "gradrail bench: {}\n", message_of(status));
    return absl::IsInvalidArgument(status) ? kUsage : kNothingMeasured;
  };
  if (flags.options.suite.empty()) return complain(absl::InvalidArgumentError(what_can_be_asked(flags.no_suite)));
  if (const std::string& host = flags.options.bind_host; !host.empty()) {
    const absl::Status own = check_own_address(host);
    if (!own.ok()) return complain(absl::Status(own.code(), fmt::format("--bind-host {}", message_of(own))));
  }
  if (const absl::Status lanes = transport::rails::check_lanes(flags.options.rails, flags.options.streams); !lanes.ok())
    return complain(lanes);
  if (const std::string& folder = flags.options.plugin_dir; !folder.empty()) {
    if (absl::Status status = transport::set_plugin_dir(folder); !status.ok()) return complain(status);
    setenv("GRADRAIL_PLUGIN_DIR", folder.c_str(), 1);  // for the child processes
  } else if (absl::Status status = transport::check_plugin_variable(); !status.ok()) {
    return complain(status);
  }
  std::unique_ptr<RankCoordinator> coordinator;
  if (over_several_processes(flags.options.suite)) {
    const absl::StatusOr<Place> place = place_of(flags.options);
    if (!place.ok()) return complain(place.status());
    // Rank 0 alone measures and prints; the others start processes on its request.
    if (place->rank > 0) {
      const absl::Status attended = serve_rank(*place, flags.options.bind_host);
      return attended.ok() ? 0 : complain(attended);
    }
    if (place->size > 1) {
      absl::StatusOr<std::unique_ptr<RankCoordinator>> met = RankCoordinator::open(*place, flags.options.bind_host);
      if (!met.ok()) return complain(met.status());
      coordinator = *std::move(met);
      flags.options.coordinator = coordinator.get();
    }
  }
  const auto end_all = [&](const absl::Status& status) {
    if (coordinator != nullptr) coordinator->fail(status);
    return complain(status);
  };
  // Before the measurement: a run of minutes must not be lost at its end.
  if (const std::string& recorded = flags.options.json; !recorded.empty()) {
    const absl::Status usable = check_output_file(recorded, OutputKind::in_place);
    if (!usable.ok()) return end_all(absl::InvalidArgumentError(fmt::format("-J {}", message_of(usable))));
  }
  for (const Suite& suite : suites()) {
    if (flags.options.suite != suite.name) continue;
    const absl::StatusOr<int> code = suite.run(flags.options);
    if (code.ok()) return *code;
    return end_all(code.status());
  }
  return kUsage;
}

}  // namespace gradrail::bench
