#include "tools/supervise/run_command.h"

#include <cstdio>
#include <limits>
#include <string_view>

#include "CLI/CLI.hpp"
#include "base/flags/number_in.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/protocol/cluster_spec.h"
#include "tools/exit_codes.h"
#include "tools/supervise/local_cluster.h"
#include "tools/train/signal_thread.h"

namespace gradrail::tools {
namespace {

int refuse(const absl::Status& why) {
  fmt::print(stderr, "gradrail: {}\n", message_of(why));
  return exit_code(why);
}

}  // namespace

void add_run_flags(CLI::App& command, RunFlags& flags) {
  TrainFlags& cluster = flags.cluster;
  cluster.workers = 1;
  cluster.max_restarts = 0;
  cluster.local = true;  // whatever the environment says
  const auto number = [&](const char* name, uint32_t& value, const char* text, uint32_t least, uint32_t most) {
    command.add_option(name, value, text)->transform(NumberIn(least, most))->capture_default_str()->take_last();
  };
  constexpr uint32_t kNoLimit = std::numeric_limits<uint32_t>::max();
  number("--ps", cluster.ps, "parameter servers", 1, 64);
  number("--workers", cluster.workers, "workers: each runs the program", 1, ps::kMaxWorkers);
  number("--restarts,--max-restarts", cluster.max_restarts, "how often lost tasks are started again, workers included",
         0, kNoLimit);
  number("--backup-ps", cluster.backup_ps, "1: the second half of the ps tasks are backups of the first half", 0, 1);
  number("--shards", cluster.shards, "shards (threads) in each parameter server", 1, 256);
  number("--keep", cluster.keep, "number of complete checkpoints to keep; 0: all", 0, kNoLimit);
  number("--heartbeat-timeout", cluster.heartbeat_timeout_s, "seconds without a heartbeat until a worker is lost", 1,
         kNoLimit);
  number("--rejoin-timeout", cluster.rejoin_timeout_s, "with --restarts: seconds that a worker waits for a lost ps", 0,
         kNoLimit);
  command.add_option("--checkpoint_dir,--checkpoint-dir", cluster.checkpoint_dir, "restore from and save to this folder")
      ->take_last();
  command.footer("PROGRAM [ARGUMENTS...] follows the flags, optionally after --.");
}

int arguments_before_program(int argc, char** argv) {
  if (argc < 2 || std::string_view(argv[1]) != "run") return argc;
  for (int i = 2; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--") return i + 1;
    if (!argument.starts_with("-")) return i;
    // Each flag but --help has a value, here or in the next argument.
    const bool has_value = argument != "-h" && argument != "--help" && argument.find('=') == std::string_view::npos;
    if (has_value) ++i;
  }
  return argc;
}

int run_program(RunFlags flags) {
  block_signals();
  if (flags.program.empty()) {
    return refuse(usage_error(absl::InvalidArgumentError(
        "run: no program is given; example: gradrail run --ps 1 --workers 3 -- python train.py")));
  }
  flags.cluster.ps_given = flags.cluster.workers_given = true;
  absl::StatusOr<TrainOptions> options = check_train_flags(flags.cluster);
  if (!options.ok()) return refuse(options.status());
  return run_local_cluster(*std::move(options), std::move(flags.program));
}

}  // namespace gradrail::tools
