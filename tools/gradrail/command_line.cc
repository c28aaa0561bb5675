#include "tools/gradrail/command_line.h"

#include "base/flags/text_value.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "tools/gradrail/info.h"

namespace gradrail::tools {
namespace {

/// The command line with the positional argument that this error misses; "" for another error.
std::string missing_argument(const CLI::App* command, const CLI::Error& error) {
  if (error.get_name() != "RequiredError") return "";
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  for (const CLI::Option* const option : command->get_options()) {
    const std::string name = option->get_name(true);
    if (!option->get_positional() || error.what() != name + " is required") continue;
    std::string line;
    for (const CLI::Option* const each : command->get_options())
      if (each->get_positional() && each->get_required()) line += (line.empty() ? "" : " ") + each->get_name(true);
    for (; command != nullptr; command = command->get_parent()) line = command->get_name() + ' ' + line;
    return fmt::format("; write `{}`", line);
  }
  return "";
}

}  // namespace

CommandLine::CommandLine() {
  app.set_version_flag("--version", version_line());
  app.require_subcommand(1);
  app.failure_message(usage_line);
  const auto add = [&](const char* name, const char* description) -> CLI::App& {
    return *app.add_subcommand(name, description);
  };
  add_train_flags(add("train", "train a model in a local cluster, or as one task of a cluster"), train);
  add_run_flags(add("run", "run a program as the workers of a cluster"), run);
  add_plugin_flag(add("info", "list the transports and GPU features of this host, and why others are missing"),
                  plugin_dir);
  CLI::App& doctor_command = add("doctor", "examine RDMA and GPUDirect on this host and verify them with transfers");
  add_doctor_flags(doctor_command, doctor);
  add_plugin_flag(doctor_command, plugin_dir);
  add_topo_flags(add("topo", "show the topology of a machine and the placement of tasks on it"), topo);
  add_top_flags(add("top", "show the activity of the tasks of a running cluster"), top);
  add_convert_flags(add("convert", "convert a data set into TFRecord files"), convert);
  add_checkpoint_flags(add("checkpoint", "list and verify checkpoints"), checkpoint);
  bench::add_bench_flags(add("bench", "measure the gradient exchange on this host or cluster"), bench);
  bench::predict::add_predict_flags(
      add("predict", "predict the step time of a described cluster, and the resource that limits it"), predict);
  refuse_unusable_values(app);
}

std::string usage_line(const CLI::App* program, const CLI::Error& error) {
  // CLI11 lists these arguments backwards, and omits a wrong verb, which leaves the command without one.
  const std::vector<std::string> unknown = program->remaining(true);
  const bool is_unknown = error.get_name() == "ExtrasError" || error.get_name() == "RequiredError";
  const std::string text =
      is_unknown && !unknown.empty() ? fmt::format("unknown arguments: {}", fmt::join(unknown, " ")) : error.what();
  return fmt::format("gradrail: {}{} (--help lists the flags)\n", escaped(text), missing_argument(program, error));
}

}  // namespace gradrail::tools
