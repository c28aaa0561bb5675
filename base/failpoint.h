#pragma once

#include <array>
#include <string_view>

namespace gradrail {

/// Places in the writing of a checkpoint, in their order: around the creation of the temporary file and each write.
/// Then after fsync, close, rename and fsync of the folder, and around each removal of an older file.
constexpr std::array<std::string_view, 10> kFailpoints = {"create", "created", "write",     "written", "synced",
                                                          "closed", "renamed", "committed", "remove",  "removed"};

/// Executes the failpoint of $GRADRAIL_FAILPOINT, a setting for tests. "kill:synced:3" ends the process with SIGKILL
/// when it reaches this place for the third time. "hold:synced:FILE" waits there as long as this file exists, and
/// simulates a slow disk. Each place reads the environment once per file or per MiB.
/// Threads  Any thread.
void failpoint(std::string_view place);

}  // namespace gradrail
