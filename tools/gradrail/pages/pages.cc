#include "tools/gradrail/pages/pages.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "CLI/CLI.hpp"
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
    std::ofstream file(path, std::ios::binary);
    file << text;
    file.close();
    if (!file) return absl::NotFoundError(fmt::format("{}: cannot be written ({})", path.string(), strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace gradrail::tools
