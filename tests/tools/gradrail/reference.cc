#include "tests/tools/gradrail/reference.h"

#include "CLI/CLI.hpp"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace gradrail::tools {
namespace {

/// The type name holds what CLI11 and the validators say: "UINT:0..64", "TEXT:{mlp,cnn,linear}", "BOOLEAN".
void describe_value(const std::string& type, ReferenceOption& option) {
  // Only the first colon separates: a validator may print one itself.
  const std::vector<std::string> parts = absl::StrSplit(type, absl::MaxSplits(':', 1));
  option.is_number = parts.front() == "UINT" || parts.front() == "INT" || parts.front() == "FLOAT";
  option.value = parts.size() > 1 && !parts.back().empty() ? parts.back() : parts.front();
  if (type == "BOOLEAN") option.choices = {"true", "false"};
  if (option.value.starts_with('{') && option.value.ends_with('}'))
    option.choices = absl::StrSplit(option.value.substr(1, option.value.size() - 2), ',');
  if (!option.choices.empty()) option.value = absl::StrJoin(option.choices, "|");
}

ReferenceOption describe_option(const CLI::Option& option) {
  ReferenceOption described{.names = {},
                            .value = "",
                            .choices = {},
                            .repeats = option.get_expected_max() > 1,
                            .required = option.get_required(),
                            .default_value = option.get_default_str(),
                            .description = option.get_description(),
                            .group = option.get_group()};
  if (option.get_positional()) {
    described.names.push_back(option.get_name(true));
  } else {
    for (const std::string& name : option.get_snames()) described.names.push_back("-" + name);
    for (const std::string& name : option.get_lnames()) described.names.push_back("--" + name);
  }
  // A flag has the type size 0 and takes no value.
  if (option.get_type_size() != 0) describe_value(option.get_type_name(), described);
  return described;
}

ReferenceCommand describe_below(const CLI::App& app, std::vector<std::string> path) {
  path.push_back(app.get_name());
  ReferenceCommand command{
      .path = path, .description = app.get_description(), .options = {}, .positionals = {}, .commands = {}};
  for (const CLI::Option* option : app.get_options({})) {
    // CLI11 hides an option or a command that has an empty group.
    if (option->get_group().empty()) continue;
    (option->get_positional() ? command.positionals : command.options).push_back(describe_option(*option));
  }
  for (const CLI::App* sub : app.get_subcommands({})) {
    if (!sub->get_group().empty()) command.commands.push_back(describe_below(*sub, path));
  }
  return command;
}

}  // namespace

std::string ReferenceCommand::name(const char* separator) const { return absl::StrJoin(path, separator); }

ReferenceCommand describe_command(const CLI::App& app) { return describe_below(app, {}); }

void visit_commands(const ReferenceCommand& command, const std::function<void(const ReferenceCommand&)>& function) {
  function(command);
  for (const ReferenceCommand& sub : command.commands) visit_commands(sub, function);
}

}  // namespace gradrail::tools
