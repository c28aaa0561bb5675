#pragma once

#include <array>
#include <string_view>

namespace gradrail::ps {

/// Places on the way of a checkpoint to the disk, in their order: around the creation of the temporary file, each
/// write, fsync, close, rename, fsync of the folder, and around each removal of an older file.
constexpr std::array<std::string_view, 10> kCheckpointFailpoints = {
    "create", "created", "write", "written", "synced", "closed", "renamed", "committed", "remove", "removed"};

/// For tests: ends this process as kill -9 would where $GRADRAIL_KILL_AT names the place: "synced", or "synced:3" for
/// the third time it comes there. A place costs a look at the environment, per file or per MiB. Threads  Any thread.
void failpoint(std::string_view place);

}  // namespace gradrail::ps
