#include "bench/driver/command.h"

#include <cstdio>

#include "CLI/CLI.hpp"
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
#include "bench/suites/exchange_flags.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "transport/plugin_loader.h"

namespace gradrail::bench {
namespace {

// The exit code of wrong flags, as of most programs.
constexpr int kUsage = 2;

struct SuiteEntry {
  const char* name;
  const char* about;
  NewSuite* make;
};

// The order is that in which people should read them.
constexpr SuiteEntry kSuites[] = {
    {"paths", "measure one exchange over each path of this host; print why a path is unusable", new_paths_suite},
    {"exchange", "measure the whole exchange: push gradients, apply them, return parameters", new_exchange_suite},
    {"incast", "measure the bandwidth of each of N workers at one shard", new_incast_suite},
    {"matrix", "measure each pair of ranks alone, and name slow hosts, NICs and links", new_matrix_suite},
    {"put", "measure latency and bandwidth of one-sided puts", new_put_suite},
    {"apply", "compare optimizers with the bandwidth of memory, on the host or a GPU", new_apply_suite},
    {"staged", "measure copies between a GPU and the host, bucket by bucket", new_staged_suite},
    {"replay", "replay the backward pass of a model against the real server", new_replay_suite},
    {"straggler", "measure the effect of a slow worker in each mode", new_straggler_suite},
    {"publish", "measure the publishing of weights to readers: time, lag, bytes, a suspended reader",
     new_publish_suite},
    {"peers", "compare exchanges and puts with other libraries in the same run", new_peers_suite}};

std::string what_can_be_asked(const std::vector<std::string>& words) {
  std::string list;
  for (const SuiteEntry& suite : kSuites) list += fmt::format("{}, ", suite.name);
  list.resize(list.size() - 2);
  return fmt::format("{}: one of {} (gradrail bench --help); gradrail-report compares recorded runs",
                     words.empty() ? "a suite is missing" : "no suite is called " + words.front(), list);
}

}  // namespace

void add_bench_flags(CLI::App& command, BenchFlags& flags) {
  for (const SuiteEntry& entry : kSuites) {
    CLI::App& app = *command.add_subcommand(entry.name, entry.about);
    Suite* const suite = flags.suites.emplace_back(entry.make()).get();
    add_flags(app, flags.options);
    suite->add_flags(app);
    app.callback([&flags, &app, suite] {
      flags.suite = suite;
      flags.options.suite = app.get_name();
      flags.options.settings = settings_of(app);
    });
  }
  CLI::App& job = *command.add_subcommand("job", "a job of a run; gradrail itself starts it")->group("");  // hidden
  job.add_option("output", flags.job_output)->required();
  // The program itself prints the choices: it sets this here, since subcommands copy the setting when they are made.
  command.require_subcommand(0, 1);
  command.allow_extras();
  command.callback([&command, &flags] {
    if (command.get_subcommands().empty()) flags.no_suite = command.remaining();
  });
}

int run_bench(const BenchFlags& flags, int argc, char** argv) {
  // The call precedes the first fork: children log under the same name.
  start_log("bench");
  end_children_on_signals();
  if (flags.job_output >= 0) run_job_of_parent(flags.job_output);
  Options options = flags.options;
  // The arguments as typed are part of the recorded run.
  options.arguments.assign(argv + 1, argv + argc);
  const auto complain = [](const absl::Status& status) {
    fmt::print(stderr, "gradrail bench: {}\n", message_of(status));
    return absl::IsInvalidArgument(status) ? kUsage : kNothingMeasured;
  };
  if (flags.suite == nullptr) return complain(absl::InvalidArgumentError(what_can_be_asked(flags.no_suite)));
  if (const std::string& host = options.bind_host; !host.empty()) {
    const absl::Status own = check_own_address(host);
    if (!own.ok()) return complain(absl::Status(own.code(), fmt::format("--bind-host {}", message_of(own))));
  }
  if (const std::string& folder = options.plugin_dir; !folder.empty()) {
    if (absl::Status status = transport::set_plugin_dir(folder); !status.ok()) return complain(status);
    setenv("GRADRAIL_PLUGIN_DIR", folder.c_str(), 1);  // needed by the child processes
  } else if (absl::Status status = transport::check_plugin_variable(); !status.ok()) {
    return complain(status);
  }
  std::unique_ptr<RankCoordinator> coordinator;
  if (const DistributedOptions* const own = flags.suite->distributed(); own != nullptr) {
    const absl::StatusOr<Place> place = place_of(own->cluster);
    if (!place.ok()) return complain(place.status());
    // Rank 0 alone measures and prints; the others start processes on its request.
    if (place->rank > 0) {
      const absl::Status attended = serve_rank(*place, options.bind_host);
      return attended.ok() ? 0 : complain(attended);
    }
    if (place->size > 1) {
      absl::StatusOr<std::unique_ptr<RankCoordinator>> met = RankCoordinator::open(*place, options.bind_host);
      if (!met.ok()) return complain(met.status());
      coordinator = *std::move(met);
      options.coordinator = coordinator.get();
    }
  }
  const auto end_all = [&](const absl::Status& status) {
    if (coordinator != nullptr) coordinator->fail(status);
    return complain(status);
  };
  // The check precedes the measurement: a run of minutes must not be lost at its end.
  if (const std::string& recorded = options.json; !recorded.empty()) {
    const absl::Status usable = check_output_file(recorded, OutputKind::in_place);
    if (!usable.ok()) return end_all(absl::InvalidArgumentError(fmt::format("-J {}", message_of(usable))));
  }
  const absl::StatusOr<int> code = flags.suite->run(options);
  return code.ok() ? *code : end_all(code.status());
}

}  // namespace gradrail::bench
