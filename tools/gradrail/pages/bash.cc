#include "absl/strings/str_join.h"
#include "fmt/format.h"
#include "tools/gradrail/pages/pages.h"

namespace gradrail::tools {
namespace {

// Readline makes "=" a word of its own. A value without choices gets no proposal: bash then completes file names.
constexpr const char* kBashHead = R"(# bash completion for gradrail
_gradrail() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} command=gradrail word
  if [[ $current == = ]]; then current=; elif [[ $previous == = ]]; then previous=${COMP_WORDS[COMP_CWORD-2]}; fi
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case "$command $word" in
      %COMMANDS%) command+=" $word" ;;
    esac
  done
  local commands= flags= other_spellings= values= takes_value=
  case $command in
)";
constexpr const char* kBashTail = R"(  esac
  COMPREPLY=()
  if [[ -n $takes_value ]]; then
    COMPREPLY=($(compgen -W "$values" -- "$current"))
  elif [[ $current == -* ]]; then
    COMPREPLY=($(compgen -W "$flags" -- "$current"))
    ((${#COMPREPLY[@]})) || COMPREPLY=($(compgen -W "$other_spellings" -- "$current"))
  else
    COMPREPLY=($(compgen -W "$commands" -- "$current"))
  fi
}
complete -o bashdefault -o default -F _gradrail gradrail
)";

// One case of the shell function: words are proposed for this command only.
std::string bash_case(const ReferenceCommand& command) {
  std::vector<std::string> words, flags, other_spellings;
  std::string values;
  for (const ReferenceCommand& sub : command.commands) words.push_back(sub.path.back());
  for (const ReferenceOption& positional : command.positionals)
    words.insert(words.end(), positional.choices.begin(), positional.choices.end());
  for (const ReferenceOption& option : command.options) {
    // The names are short ones, then long ones, of which the others differ in dashes and underscores.
    bool has_long = false;
    for (const std::string& name : option.names) {
      (has_long ? other_spellings : flags).push_back(name);
      has_long = has_long || name.starts_with("--");
    }
    // A flag without a value must not take the next word.
    if (!option.value.empty()) {
      values += fmt::format("        {}) takes_value=1 values='{}' ;;\n", absl::StrJoin(option.names, " | "),
                            absl::StrJoin(option.choices, " "));
    }
  }
  return fmt::format("    '{}')\n      commands='{}'\n      flags='{}'\n      other_spellings='{}'\n{}      ;;\n",
                     command.name(" "), absl::StrJoin(words, " "), absl::StrJoin(flags, " "),
                     absl::StrJoin(other_spellings, " "),
                     values.empty() ? "" : fmt::format("      case $previous in\n{}      esac\n", values));
}

}  // namespace

std::string bash_completion(const ReferenceCommand& program) {
  std::vector<std::string> paths;
  std::string cases;
  visit_commands(program, [&](const ReferenceCommand& command) {
    if (command.path.size() > 1) paths.push_back(fmt::format("'{}'", command.name(" ")));
    cases += bash_case(command);
  });
  const std::string head = kBashHead;
  const size_t place = head.find("%COMMANDS%");
  // 10 is the length of %COMMANDS%.
  return head.substr(0, place) + absl::StrJoin(paths, " | ") + head.substr(place + 10) + cases + kBashTail;
}

}  // namespace gradrail::tools
