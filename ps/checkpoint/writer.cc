#include "ps/checkpoint/writer.h"

#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"

namespace gradrail::ps {
namespace {

/// Niceness of the writer: shards and workers have priority on few cores, so that no step waits for a file.
constexpr int kNiceness = 10;

bool is_ready(const std::shared_future<absl::Status>& future, Duration timeout) {
  return future.wait_for(timeout) == std::future_status::ready;
}

}  // namespace

std::optional<std::vector<Checkpoint>> CheckpointWriter::take_memory() {
  const MutexLock lock(mutex_);
  if (!saves_.empty() && !is_ready(saves_.back().outcome, Duration::zero())) return std::nullopt;
  // The caller owns it until write(), so that no copy is made under the lock.
  return std::exchange(memory_, {});
}

std::vector<std::string> CheckpointWriter::write(const SavedSet& set, std::vector<Checkpoint> snapshots) {
  std::vector<std::string> files;
  for (const Checkpoint& snapshot : snapshots) files.push_back(path(snapshot));
  const MutexLock lock(mutex_);
  // No save is under way after take_memory().
  GRADRAIL_CHECK(saves_.empty() || is_ready(saves_.back().outcome, Duration::zero()));
  auto outcome = std::async(std::launch::async, [this, snapshots = std::move(snapshots)]() mutable {
    setpriority(PRIO_PROCESS, 0, kNiceness);  // niceness of this thread, on Linux
    absl::Status written = write_all(snapshots);
    const MutexLock memory_lock(mutex_);
    // The memory is reused after a failure too: the next save needs the same amount.
    memory_ = std::move(snapshots);
    return written;
  });
  if (saves_.size() == kRemembered) saves_.pop_front();
  saves_.push_back({.set = set, .outcome = outcome.share()});
  return files;
}

std::optional<absl::Status> CheckpointWriter::outcome(const SavedSet& set, Duration timeout) {
  std::shared_future<absl::Status> writing;
  {
    const MutexLock lock(mutex_);
    const auto found = std::find_if(saves_.begin(), saves_.end(), [&set](const Save& save) {
      return save.set.global_step == set.global_step && save.set.saved_us == set.saved_us;
    });
    if (found == saves_.end()) {
      return absl::NotFoundError(fmt::format(
          "checkpoint of step {}: this ps task has not begun it, or has begun many others since", set.global_step));
    }
    writing = found->outcome;
  }
  // This wait does not hold the lock, which the writing thread takes at its end.
  if (!is_ready(writing, timeout)) return std::nullopt;
  return writing.get();
}

absl::Status CheckpointWriter::write_all(const std::vector<Checkpoint>& snapshots) const {
  for (const Checkpoint& snapshot : snapshots) {
    CheckpointView view{.header = &snapshot.header, .parameters = snapshot.parameters, .state = {}};
    for (const std::vector<float>& state : snapshot.state) view.state.emplace_back(state);
    const absl::Status written = write_checkpoint(path(snapshot), view);
    if (written.ok()) continue;
    // Files of a failed save never become a set: they must not take the room that the next one needs.
    for (const Checkpoint& done : snapshots) {
      std::error_code gone;
      std::filesystem::remove(path(done), gone);
    }
    return written;
  }
  return absl::OkStatus();
}

std::string CheckpointWriter::path(const Checkpoint& snapshot) const {
  const CheckpointHeader& header = snapshot.header;
  return fmt::format("{}/{}", folder_,
                     checkpoint_file_name(header.global_step, header.saved_us, header.shard_index, header.shard_count));
}

}  // namespace gradrail::ps
