#include "tools/train/run_command.h"

#include <limits>
#include <string_view>

#include "CLI/CLI.hpp"
#include "base/exit_codes.h"
#include "base/flags/number_in.h"
#include "base/flags/text_value.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gradrail/cluster.h"
#include "ps/protocol/exchange_layout.h"
#include "tools/security_flags.h"

namespace gradrail::tools {

void add_run_flags(CLI::App& command, TrainOptions& options) {
  options.workers = 1;
  options.max_restarts = 0;
  const auto number = [&](const char* name, uint32_t& value, const char* text, uint32_t least, uint32_t most) {
    return command.add_option(name, value, text)->transform(NumberIn(least, most))->capture_default_str()->take_last();
  };
  constexpr uint32_t kNoLimit = std::numeric_limits<uint32_t>::max();
  number("--ps", options.ps, "parameter servers", 1, 64)->each([&](const std::string&) { options.ps_given = true; });
  number("--workers", options.workers, "workers: each runs the program", 1, kMaxWorkers)->each([&](const std::string&) {
    options.workers_given = true;
  });
  command.add_flag("--local,--alone", options.is_local_asked,
                   "start a cluster on this host; ignore TF_CONFIG and the variables of launchers");
  number("--restarts,--max-restarts", options.max_restarts, "how often lost tasks are started again, workers included",
         0, kNoLimit);
  command
      .add_option(
          "--interactive", options.interactive,
          "the worker with this index reads the terminal, and gets its Ctrl-C; the input of the others is empty")
      ->transform(NumberIn(0u, kMaxWorkers - 1))
      ->take_last();
  number("--backup-ps", options.backup_ps, "1: the second half of the ps tasks are backups of the first half", 0, 1);
  number("--shards", options.shards, "shards (threads) in each parameter server", 1, 256);
  number("--slot_mib,--slot-mib", options.slot_mib,
         "MiB of a shard for gradients of one worker on their way; 0: room for all", 0, kMaxSlotMib);
  command
      .add_option("--data-port,--data_port", options.data_port,
                  "first port for data connections; each shard has two consecutive ones for each transport over a "
                  "network; 0: any")
      ->transform(NumberIn<uint16_t>(0))
      ->capture_default_str()
      ->take_last();
  number("--keep", options.keep, "number of complete checkpoints to keep; 0: all", 0, kNoLimit);
  number("--heartbeat-timeout", options.heartbeat_timeout_s, "seconds without a heartbeat until a worker is lost", 1,
         kNoLimit);
  number("--rejoin-timeout", options.rejoin_timeout_s,
         "seconds that a worker waits for a lost ps; on one host with --restarts only", 0, kNoLimit);
  number("--join-timeout", options.join_timeout_seconds, "seconds that the tasks of a launcher wait for each other", 1,
         kNoLimit);
  command
      .add_option("--rendezvous", options.rendezvous.text,
                  "tcp://HOST:PORT: address of the first task of srun, mpirun or torchrun; default: from the launcher")
      ->transform(parsed_into(options.rendezvous, launch::parse_rendezvous))
      ->take_last();
  command.add_option("--bind", options.bind.text, "address on which a ps listens; default: its address in the cluster")
      ->transform(parsed_into(options.bind, launch::parse_bind))
      ->take_last();
  command
      .add_option("--checkpoint_dir,--checkpoint-dir", options.checkpoint_dir,
                  "restore from this folder; the program saves there (save_checkpoint)")
      ->take_last();
  add_security_flags(command, options.security, options.secret_file);
  command.add_flag("--encrypt-data,--encrypt_data", options.security.encrypt_data,
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

absl::StatusOr<TrainOptions> check_run_options(TrainOptions options) {
  if (options.rendezvous.is_etcd()) {
    return usage_error(absl::InvalidArgumentError(fmt::format(
        "run --rendezvous {}: etcd has no ranks for programs; the form is tcp://HOST:PORT", options.rendezvous.text)));
  }
  GRADRAIL_ASSIGN_OR_RETURN(options, check_train_options(std::move(options)));
  if (options.program.empty()) {
    return usage_error(absl::InvalidArgumentError(
        "run: no program is given; example: gradrail run --ps 1 --workers 3 -- python train.py"));
  }
  if (const auto index = options.interactive; index && (!options.local || *index >= options.workers))
    return usage_error(absl::InvalidArgumentError(
        options.local
            ? fmt::format("--interactive {}: the workers are 0 to {}", *index, options.workers - 1)
            : fmt::format("--interactive {}: this is one task of a cluster, which has its own terminal; leave "
                          "out the flag, or use --local",
                          *index)));
  return options;
}

}  // namespace gradrail::tools
