#include "tools/train/run_command.h"

#include <string_view>

#include "CLI/CLI.hpp"
#include "base/exit_codes.h"
#include "base/status.h"
#include "fmt/format.h"

namespace gradrail::tools {

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
  if (options.start.rendezvous.is_etcd()) {
    return usage_error(absl::InvalidArgumentError(
        fmt::format("run --rendezvous {}: etcd has no ranks for programs; the form is tcp://HOST:PORT",
                    options.start.rendezvous.text)));
  }
  if (options.start.ps == 0)
    return usage_error(absl::InvalidArgumentError("run --ps 0: a program needs a parameter server; give 1 to 64"));
  GRADRAIL_ASSIGN_OR_RETURN(options, check_train_options(std::move(options)));
  if (options.start.program.empty()) {
    return usage_error(absl::InvalidArgumentError(
        "run: no program is given; example: gradrail run --ps 1 --workers 3 -- python train.py"));
  }
  if (const auto index = options.start.interactive; index && (!options.start.local || *index >= options.start.workers))
    return usage_error(absl::InvalidArgumentError(
        options.start.local
            ? fmt::format("--interactive {}: the workers are 0 to {}", *index, options.start.workers - 1)
            : fmt::format("--interactive {}: this is one task of a cluster, which has its own terminal; leave "
                          "out the flag, or use --local",
                          *index)));
  return options;
}

}  // namespace gradrail::tools
