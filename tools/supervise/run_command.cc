#include "tools/supervise/run_command.h"

#include <limits>
#include <string_view>

#include "CLI/CLI.hpp"
#include "base/flags/number_in.h"
#include "base/flags/text_value.h"
#include "base/log.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "ps/protocol/cluster_spec.h"
#include "ps/protocol/exchange_layout.h"
#include "tools/exit_codes.h"
#include "tools/security_flags.h"

namespace gradrail::tools {

void add_run_flags(CLI::App& command, RunFlags& flags) {
  TrainFlags& cluster = flags.cluster;
  cluster.workers = 1;
  cluster.max_restarts = 0;
  const auto number = [&](const char* name, uint32_t& value, const char* text, uint32_t least, uint32_t most) {
    return command.add_option(name, value, text)->transform(NumberIn(least, most))->capture_default_str()->take_last();
  };
  constexpr uint32_t kNoLimit = std::numeric_limits<uint32_t>::max();
  number("--ps", cluster.ps, "parameter servers", 1, 64)->each([&](const std::string&) { cluster.ps_given = true; });
  number("--workers", cluster.workers, "workers: each runs the program", 1, ps::kMaxWorkers)
      ->each([&](const std::string&) { cluster.workers_given = true; });
  command.add_flag("--local,--alone", cluster.local,
                   "start a cluster on this host; ignore TF_CONFIG and the variables of launchers");
  number("--restarts,--max-restarts", cluster.max_restarts, "how often lost tasks are started again, workers included",
         0, kNoLimit);
  command
      .add_option(
          "--interactive", cluster.interactive,
          "the worker with this index reads the terminal, and gets its Ctrl-C; the input of the others is empty")
      ->transform(NumberIn(0u, ps::kMaxWorkers - 1))
      ->take_last();
  number("--backup-ps", cluster.backup_ps, "1: the second half of the ps tasks are backups of the first half", 0, 1);
  number("--shards", cluster.shards, "shards (threads) in each parameter server", 1, 256);
  number("--slot_mib,--slot-mib", cluster.slot_mib,
         "MiB of a shard for gradients of one worker on their way; 0: room for all", 0, kMaxSlotMib);
  command
      .add_option("--data-port,--data_port", cluster.data_port,
                  "first port for data connections; each shard has two consecutive ones for each transport over a "
                  "network; 0: any")
      ->transform(NumberIn<uint16_t>(0))
      ->capture_default_str()
      ->take_last();
  number("--keep", cluster.keep, "number of complete checkpoints to keep; 0: all", 0, kNoLimit);
  number("--heartbeat-timeout", cluster.heartbeat_timeout_s, "seconds without a heartbeat until a worker is lost", 1,
         kNoLimit);
  number("--rejoin-timeout", cluster.rejoin_timeout_s,
         "seconds that a worker waits for a lost ps; on one host with --restarts only", 0, kNoLimit);
  number("--join-timeout", cluster.join_timeout_seconds, "seconds that the tasks of a launcher wait for each other", 1,
         kNoLimit);
  command
      .add_option("--rendezvous", cluster.rendezvous.text,
                  "tcp://HOST:PORT: address of the first task of srun, mpirun or torchrun; default: from the launcher")
      ->transform(parsed_into(cluster.rendezvous, launch::parse_rendezvous))
      ->take_last();
  command.add_option("--bind", cluster.bind, "address on which a ps listens; default: its address in the cluster")
      ->transform(accepted_by(ps::parse_host_port))
      ->take_last();
  command
      .add_option("--checkpoint_dir,--checkpoint-dir", cluster.checkpoint_dir,
                  "restore from this folder; the program saves there (save_checkpoint)")
      ->take_last();
  add_security_flags(command, cluster.security);
  command.add_flag("--encrypt-data,--encrypt_data", cluster.security.security.encrypt_data,
                   "encrypt the data between hosts: in all tasks or in none");
  command.footer("PROGRAM [ARGUMENTS...] follows the flags, optionally after --.");
}

int arguments_before_program(const CLI::App& command, int argc, char** argv) {
  if (argc < 2 || std::string_view(argv[1]) != "run") return argc;
  for (int i = 2; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--") return i + 1;
    if (!argument.starts_with("-")) return i;
    // The value of a flag is here or in the next argument. The parser refuses an unknown flag.
    const CLI::Option* const option = command.get_option_no_throw(std::string(argument));
    const bool has_value = option == nullptr || option->get_items_expected_max() > 0;
    if (has_value && argument.find('=') == std::string_view::npos) ++i;
  }
  return argc;
}

absl::StatusOr<TrainOptions> check_run_flags(const RunFlags& flags) {
  if (flags.cluster.rendezvous.is_etcd()) {
    return usage_error(absl::InvalidArgumentError(fmt::format(
        "run --rendezvous {}: etcd has no ranks for programs; the form is tcp://HOST:PORT", flags.cluster.rendezvous.text)));
  }
  const TrainFlags& cluster = flags.cluster;
  GRADRAIL_ASSIGN_OR_RETURN(TrainOptions options, check_train_flags(cluster));
  if (flags.program.empty()) {
    return usage_error(absl::InvalidArgumentError(
        "run: no program is given; example: gradrail run --ps 1 --workers 3 -- python train.py"));
  }
  options.program = flags.program;
  if (const auto index = cluster.interactive; index && (!options.local || *index >= cluster.workers))
    return usage_error(absl::InvalidArgumentError(
        options.local
            ? fmt::format("--interactive {}: the workers are 0 to {}", *index, cluster.workers - 1)
            : fmt::format("--interactive {}: this is one task of a cluster, which has its own terminal; leave "
                          "out the flag, or use --local",
                          *index)));
  return options;
}

}  // namespace gradrail::tools
