#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "fmt/format.h"
#include "tools/gradrail/pages/pages.h"

namespace gradrail::tools {
namespace {

/// A line of text must not begin with a roff request, and a hyphen of a flag must stay a hyphen-minus.
std::string roff(const std::string& text) {
  // \e prints a backslash in any font, \(aq and \(dq print ASCII quotes (groff_char(7)).
  std::string escaped = absl::StrReplaceAll(text, {{"\\", "\\e"}, {"-", "\\-"}, {"\"", "\\(dq"}, {"'", "\\(aq"}});
  // A period at the beginning of a line starts a request; \& prints nothing and hides it.
  if (escaped.starts_with('.')) escaped.insert(0, "\\&");
  return escaped;
}

std::string option_entry(const ReferenceOption& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.names) names.push_back(fmt::format("\\fB{}\\fR", roff(name)));
  std::string entry = fmt::format(".TP\n{}", absl::StrJoin(names, ", "));
  if (!option.value.empty()) entry += fmt::format(" \\fI{}\\fR{}", roff(option.value), option.repeats ? " ..." : "");
  entry += fmt::format("\n{}\n", roff(option.description));
  if (option.required) entry += "(required)\n";
  if (!option.default_value.empty()) entry += fmt::format("(default: {})\n", roff(option.default_value));
  return entry;
}

std::string synopsis(const ReferenceCommand& command) {
  std::string line = fmt::format("\\fB{}\\fR", roff(command.name(" ")));
  if (!command.options.empty()) line += " [\\fIOPTION\\fR]...";
  if (!command.commands.empty()) line += " \\fICOMMAND\\fR";
  for (const ReferenceOption& positional : command.positionals) {
    const std::string name =
        fmt::format("\\fI{}\\fR{}", roff(positional.names.front()), positional.repeats ? "..." : "");
    line += positional.required ? " " + name : fmt::format(" [{}]", name);
  }
  return line;
}

std::string option_groups(const ReferenceCommand& command) {
  std::vector<std::string> groups;
  // The order of definition, as in --help, not that of the alphabet.
  for (const ReferenceOption& option : command.options) {
    if (std::find(groups.begin(), groups.end(), option.group) == groups.end()) groups.push_back(option.group);
  }
  std::string text = ".SH OPTIONS\n";
  for (const std::string& group : groups) {
    text += fmt::format(".SS {}\n", roff(group));
    for (const ReferenceOption& option : command.options) {
      if (option.group == group) text += option_entry(option);
    }
  }
  return text;
}

std::string see_also(const ReferenceCommand& command) {
  std::vector<std::string> pages;
  std::string parent;
  for (size_t i = 0; i + 1 < command.path.size(); ++i) {
    // Pages have the names of their files: gradrail-bench-put.
    parent += (i == 0 ? "" : "-") + command.path[i];
    pages.push_back(fmt::format("\\fB{}\\fR(1)", roff(parent)));
  }
  for (const ReferenceCommand& sub : command.commands)
    pages.push_back(fmt::format("\\fB{}\\fR(1)", roff(sub.name("-"))));
  return pages.empty() ? "" : fmt::format(".SH \"SEE ALSO\"\n{}\n", absl::StrJoin(pages, ",\n"));
}

}  // namespace

std::string manual_page(const ReferenceCommand& command) {
  const std::string name = command.name("-");
  // An empty date: the page of a release must not differ between two builds.
  std::string page = fmt::format(".TH {} 1 \"\" \"gradrail {}\" \"gradrail manual\"\n",
                                 roff(absl::AsciiStrToUpper(name)), GRADRAIL_VERSION);
  page += fmt::format(".SH NAME\n{} \\- {}\n", roff(name), roff(command.description));
  page += fmt::format(".SH SYNOPSIS\n{}\n", synopsis(command));
  if (!command.positionals.empty()) page += ".SH ARGUMENTS\n";
  for (const ReferenceOption& positional : command.positionals) page += option_entry(positional);
  if (!command.commands.empty()) page += ".SH COMMANDS\n";
  for (const ReferenceCommand& sub : command.commands)
    page += fmt::format(".TP\n\\fB{}\\fR\n{}\n", roff(sub.path.back()), roff(sub.description));
  return page + option_groups(command) + see_also(command);
}

}  // namespace gradrail::tools
