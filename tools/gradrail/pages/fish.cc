#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "fmt/format.h"
#include "tools/gradrail/pages/pages.h"

namespace gradrail::tools {
namespace {

// Inside single quotes fish has two escapes: the backslash and the quote itself.
std::string fish_quoted(const std::string& text) {
  return fmt::format("'{}'", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "\\'"}}));
}

/// True in fish where the command line has all words of the command's path and none of a command below it.
std::string fish_condition(const ReferenceCommand& command) {
  std::vector<std::string> parts, below;
  for (size_t i = 1; i < command.path.size(); ++i) parts.push_back("__fish_seen_subcommand_from " + command.path[i]);
  for (const ReferenceCommand& sub : command.commands) below.push_back(sub.path.back());
  // Without this test the options of "bench" would also appear after "bench put".
  if (!below.empty()) parts.push_back("not __fish_seen_subcommand_from " + absl::StrJoin(below, " "));
  return fish_quoted(absl::StrJoin(parts, "; and "));
}

std::string fish_option(const std::string& where, const ReferenceOption& option) {
  std::string line = where;
  for (const std::string& name : option.names)
    line += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  // -x: a value and no file name. -r -F: a value that may be a file name.
  if (!option.choices.empty()) {
    line += fmt::format(" -x -a {}", fish_quoted(absl::StrJoin(option.choices, " ")));
  } else if (!option.value.empty()) {
    line += option.is_number ? " -x" : " -r -F";
  }
  return fmt::format("{} -d {}\n", line, fish_quoted(option.description));
}

}  // namespace

std::string fish_completion(const ReferenceCommand& program) {
  // -f: no file names, except where an option or an argument takes them.
  std::string text = "# fish completion for gradrail\ncomplete -c gradrail -f\n";
  visit_commands(program, [&](const ReferenceCommand& command) {
    const std::string where = fmt::format("complete -c gradrail -n {}", fish_condition(command));
    for (const ReferenceCommand& sub : command.commands)
      text += fmt::format("{} -a {} -d {}\n", where, sub.path.back(), fish_quoted(sub.description));
    for (const ReferenceOption& positional : command.positionals) {
      text += positional.choices.empty()
                  ? where + " -F\n"
                  : fmt::format("{} -a {}\n", where, fish_quoted(absl::StrJoin(positional.choices, " ")));
    }
    for (const ReferenceOption& option : command.options) text += fish_option(where, option);
  });
  return text;
}

}  // namespace gradrail::tools
