#pragma once

#include <string>

#include "absl/status/status.h"
#include "tools/gradrail/pages/reference.h"

namespace gradrail::tools {

/// In roff, for man(1); one page per command, as git has them.
std::string manual_page(const ReferenceCommand& command);
/// A function of bash that reads COMP_WORDS.
std::string bash_completion(const ReferenceCommand& program);
/// One function per command, over _arguments.
std::string zsh_completion(const ReferenceCommand& program);
/// A list of `complete` lines with conditions.
std::string fish_completion(const ReferenceCommand& program);

/// Writes one manual page per command and the completions of three shells below `folder`, in the folders in which an
/// installation keeps them below share/. Errors  NOT_FOUND: a file cannot be written.
absl::Status write_pages(const CLI::App& program, const std::string& folder);

}  // namespace gradrail::tools
