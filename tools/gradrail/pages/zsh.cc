#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "fmt/format.h"
#include "tools/gradrail/pages/pages.h"

namespace gradrail::tools {
namespace {

/// For a word in single quotes; brackets and colons are syntax of _arguments.
std::string zsh_quoted(const std::string& text) {
  return absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "'\\''"}, {"[", "\\["}, {"]", "\\]"}, {":", "\\:"}});
}

/// ":0..64: ", ":mlp|cnn:(mlp cnn)", ":TEXT:_files"
std::string zsh_action(const ReferenceOption& option) {
  if (option.value.empty()) return "";
  const std::string values = !option.choices.empty() ? fmt::format("({})", absl::StrJoin(option.choices, " "))
                             : option.is_number      ? " "
                                                     : "_files";
  return fmt::format(":{}:{}", zsh_quoted(option.value), values);
}

std::string function_name(const ReferenceCommand& command) { return "_" + command.name("_"); }

std::string zsh_arguments(const ReferenceCommand& command) {
  std::string text;
  for (const ReferenceOption& option : command.options) {
    // The list in parentheses excludes the other spellings once one of them is given.
    for (const std::string& name : option.names) {
      // "=" lets the value follow in the same word or in the next one; "+" does the same for a short option.
      const char* const joined = option.value.empty() ? "" : name.starts_with("--") ? "=" : "+";
      text += fmt::format(" \\\n    '({}){}{}[{}]{}'", absl::StrJoin(option.names, " "), name, joined,
                          zsh_quoted(option.description), zsh_action(option));
    }
  }
  for (const ReferenceOption& positional : command.positionals)
    // "*": the argument can repeat.
    text += fmt::format(" \\\n    '{}{}'", positional.repeats ? "*" : "", zsh_action(positional));
  return text;
}

std::string zsh_function(const ReferenceCommand& command) {
  if (command.commands.empty())
    return fmt::format("{}() {{\n  _arguments{}\n}}\n\n", function_name(command), zsh_arguments(command));
  // -C lets "argument" run with the words that remain, so that each command completes its own.
  std::string names, cases;
  for (const ReferenceCommand& sub : command.commands) {
    names += fmt::format(" \\\n        '{}:{}'", sub.path.back(), zsh_quoted(sub.description));
    cases += fmt::format("        {}) {} ;;\n", sub.path.back(), function_name(sub));
  }
  return fmt::format(R"({}() {{
  local line state
  local -a commands
  _arguments -C{} \
    '1:command:->command' \
    '*::argument:->argument'
  case $state in
    command)
      commands=({})
      _describe command commands
      ;;
    argument)
      case $line[1] in
{}      esac
      ;;
  esac
}}

)",
                     function_name(command), zsh_arguments(command), names, cases);
}

}  // namespace

std::string zsh_completion(const ReferenceCommand& program) {
  std::string text = "#compdef gradrail\n\n";
  visit_commands(program, [&](const ReferenceCommand& command) { text += zsh_function(command); });
  return text + "_gradrail \"$@\"\n";
}

}  // namespace gradrail::tools
