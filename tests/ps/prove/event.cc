#include "tests/ps/prove/event.h"

#include <iterator>

#include "fmt/format.h"

namespace gradrail::ps::prove {
namespace {

/// In the order of Event::Kind.
constexpr const char* kWords[] = {
    "the push arrives",
    "the answer arrives",
    "a grace window ends",
    "the shard detects the loss of the connection",
    "the worker detects the loss of the connection",
    "the worker reconnects",
    "the worker joins again",
    "the worker joins",
    "the worker starts",
    "the worker reports that its steps are done",
    "the worker leaves",
    "the shard detects the loss of the worker",
    "the primary sends to its backup",
    "the bucket arrives at the backup",
    "the acknowledgement arrives at the primary",
    "the backup is declared level",
    "the members are sent to the backup",
    "the primary detects the loss of its backup",
    "the backup detects the loss of its primary",
    "the backup expects a new connection of its primary",
    "the primary connects to its backup again",
    "the primary continues without its backup",
    "the backup takes over",
    "the former primary stops",
    "a copy of a push arrives",
    "the push arrives, and a copy remains",
    "the worker's end of the connection fails",
    "the shard's end of the connection fails",
    "a push skips steps",
    "the join of a replaced incarnation arrives",
    "the worker restarts",
    "the worker is killed",
    "the worker is declared lost and runs on",
    "the primary is killed",
    "the backup is killed",
    "the connection to the backup fails",
    "the primary fills a slot and finds no room",
    "the grace window of an earlier step ends",
};
static_assert(std::size(kWords) == static_cast<size_t>(Event::Kind::end_old_window) + 1);

}  // namespace

std::string describe(const Event& event) {
  return fmt::format("worker {} server {} {} bucket {}: {}", event.worker, event.server,
                     event.side == 0 ? "primary" : "backup", event.bucket, kWords[static_cast<size_t>(event.kind)]);
}

}  // namespace gradrail::ps::prove
