#pragma once

#include <array>
#include <string_view>

namespace gradrail::ps {

/// Places on the way of a checkpoint to the disk, in their order: around the creation of the temporary file, each
/// write, fsync, close, rename, fsync of the folder, and around each removal of an older file.
constexpr std::array<std::string_view, 10> kCheckpointFailpoints = {
    "create", "created", "write", "written", "synced", "closed", "renamed", "committed", "remove", "removed"};

/// For tests, by $GRADRAIL_FAILPOINT: "kill:synced:3" ends this process as kill -9 would when it comes to this place
/// for the third time; "sleep:synced:500" holds it up there for so many milliseconds each time, as a slow disk does. A
/// place costs a look at the environment, per file or per MiB.
/// Threads  Any thread.
void failpoint(std::string_view place);

}  // namespace gradrail::ps
