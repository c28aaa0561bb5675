#pragma once

#include <string>

#include "absl/status/status.h"
#include "tools/gradrail/pages/reference.h"

namespace gradrail::tools {

std::string manual_page(const ReferenceCommand& command);
std::string bash_completion(const ReferenceCommand& program);
std::string zsh_completion(const ReferenceCommand& program);
std::string fish_completion(const ReferenceCommand& program);

/// Writes one manual page per command and the completions of three shells below `folder`, in the folders in which an
/// installation keeps them below share/. Errors  NOT_FOUND: a file cannot be written.
absl::Status write_pages(const CLI::App& program, const std::string& folder);

}  // namespace gradrail::tools
