#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace gradrail::tools {

/// An option or a positional argument of a command, as its definition states it.
/// It comes from the parser itself, so that a test cannot miss a flag.
struct ReferenceOption {
  std::vector<std::string> names;  ///< "--batch_size", "--batch-size", "-b"; of a positional: its name
  std::string value;               ///< "0..64", "mlp|cnn|linear", "TEXT"; "": a flag without a value
  std::vector<std::string> choices;
  bool is_number = false;
  bool repeats = false;
  bool required = false;
  std::string default_value;
  std::string description;
  std::string group;
};

/// One command with the commands below it; the tree of the program has a depth of three.
struct ReferenceCommand {
  std::vector<std::string> path;  ///< "gradrail", "bench", "put"
  std::string description;
  std::vector<ReferenceOption> options;  ///< in the order of their definition
  std::vector<ReferenceOption> positionals;
  std::vector<ReferenceCommand> commands;

  /// "gradrail bench put" or "gradrail-bench-put".
  std::string name(const char* separator) const;
};

/// Omits hidden commands and options: their group is empty.
ReferenceCommand describe_command(const CLI::App& app);

/// Calls the function for the command, then for each command below it.
void visit_commands(const ReferenceCommand& command, const std::function<void(const ReferenceCommand&)>& function);

}  // namespace gradrail::tools
