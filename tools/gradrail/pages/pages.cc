#include "tools/gradrail/pages/pages.h"

#include <filesystem>
#include <map>

#include "CLI/CLI.hpp"
#include "base/read_file.h"
#include "base/status.h"
#include "fmt/format.h"

namespace gradrail::tools {

absl::Status write_pages(const CLI::App& program, const std::string& folder) {
  const ReferenceCommand reference = describe_command(program);
  // A map: each build writes the files in the same order.
  std::map<std::string, std::string> files = {
      {"bash-completion/completions/gradrail", bash_completion(reference)},
      {"zsh/site-functions/_gradrail", zsh_completion(reference)},
      {"fish/vendor_completions.d/gradrail.fish", fish_completion(reference)},
  };
  visit_commands(reference, [&](const ReferenceCommand& command) {
    files[fmt::format("man/man1/{}.1", command.name("-"))] = manual_page(command);
  });
  for (const auto& [name, text] : files) {
    const std::filesystem::path path = std::filesystem::path(folder) / name;
    std::error_code error;
    // An error shows itself below, as a file that cannot be written.
    std::filesystem::create_directories(path.parent_path(), error);
    GRADRAIL_RETURN_IF_ERROR(write_file(path.string(), text, WriteMode::replace));
  }
  return absl::OkStatus();
}

}  // namespace gradrail::tools
