#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "gpu/reduce/nccl_abi.h"
#include "tests/gpu/simulated/control.h"

// NCCL for the simulated driver: all-reduce between the devices of one process, the operation of each on its own
// stream. Like the real one it waits for its peers for ever, until an abort.

namespace {

using namespace gradrail::gpu;
using nccl::Result;

constexpr Result kInternalError = 3;
constexpr Result kInvalidArgument = 4;

/// One all-reduce, the n-th of every rank.
struct Round {
  std::vector<const float*> from;
  std::vector<float*> to;
  size_t count = 0;
  size_t arrived = 0;
  bool differs = false;  ///< the ranks disagree on the count
  bool done = false;
};

struct Group {
  size_t ranks = 0;  ///< set once
  gradrail::Mutex mutex;
  gradrail::ConditionVariable changed;
  bool aborted ABSL_GUARDED_BY(mutex) = false;
  std::map<size_t, Round> rounds ABSL_GUARDED_BY(mutex);
  std::vector<size_t> under_way ABSL_GUARDED_BY(mutex);  ///< by rank
};

}  // namespace

struct ncclComm {
  std::shared_ptr<Group> group;
  size_t rank = 0;
  int ordinal = 0;
  size_t next_round = 0;
};

namespace {

struct Operation {
  std::shared_ptr<Group> group;
  CUstream_st* stream;
  size_t rank;
  size_t round;
  const float* from;
  float* to;
  size_t count;
};

void average(Round& round) {
  const float share = 1.0f / static_cast<float>(round.from.size());
  std::vector<float> sums(round.from[0], round.from[0] + round.count);
  for (size_t rank = 1; rank < round.from.size(); ++rank) {
    for (size_t i = 0; i < round.count; ++i) sums[i] += round.from[rank][i];
  }
  for (float& sum : sums) sum *= share;
  for (float* to : round.to) std::copy(sums.begin(), sums.end(), to);
}

void meet(Group& group, const Operation& operation, gradrail::MutexLock& lock)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(group.mutex) {
  Round& round = group.rounds[operation.round];
  round.from.resize(group.ranks);
  round.to.resize(group.ranks);
  round.from[operation.rank] = operation.from;
  round.to[operation.rank] = operation.to;
  round.differs = round.differs || (round.arrived > 0 && round.count != operation.count);
  round.count = operation.count;
  if (++round.arrived == group.ranks) {
    if (!round.differs) average(round);
    round.done = true;
    group.changed.notify_all();
  }
  while (!round.done && !group.aborted) group.changed.wait(lock);
  // The real one hangs or writes nonsense; a test shall see it at once.
  if (round.differs) gradrail_simulated_fail(operation.stream, cuda::kIllegalAddress);
}

using Operations = std::vector<Operation>;

/// Calls of this thread since ncclGroupStart(). ncclGroupEnd() starts them.
thread_local Operations grouped;
thread_local int group_depth = 0;

void reduce(void* argument) {
  for (const Operation& operation : *static_cast<const Operations*>(argument)) {
    Group& group = *operation.group;
    gradrail::MutexLock lock(group.mutex);
    // A device that failed does not answer any more.
    if (gradrail_simulated_error(operation.stream) == cuda::kSuccess) meet(group, operation, lock);
    --group.under_way[operation.rank];
    group.changed.notify_all();
  }
}

/// One kernel for all of them, as the real one.
Result launch(Operations operations) {
  if (operations.empty()) return nccl::kSuccess;
  for (const Operation& operation : operations) {
    const gradrail::MutexLock lock(operation.group->mutex);
    ++operation.group->under_way[operation.rank];
  }
  CUstream_st* const stream = operations.front().stream;
  auto* const work = new Operations(operations);
  const auto release = [](void* owned) { delete static_cast<Operations*>(owned); };
  if (gradrail_simulated_launch(stream, reduce, work, release) == cuda::kSuccess) return nccl::kSuccess;
  for (const Operation& operation : operations) {
    const gradrail::MutexLock lock(operation.group->mutex);
    --operation.group->under_way[operation.rank];
  }
  return kInternalError;
}

bool has_duplicates(int count, const int* ordinals) {
  return std::set<int>(ordinals, ordinals + count).size() != static_cast<size_t>(count);
}

}  // namespace

namespace gradrail::gpu::nccl {
// A declaration has no place for parentheses. NOLINTNEXTLINE(bugprone-macro-parentheses)
#define GRADRAIL_DECLARE(result, name, parameters) GRADRAIL_SIMULATED_CONTROL result name parameters;
GRADRAIL_NCCL_FUNCTIONS(GRADRAIL_DECLARE)
#undef GRADRAIL_DECLARE
}  // namespace gradrail::gpu::nccl

GRADRAIL_SIMULATED_CONTROL Result ncclGetVersion(int* version) {
  *version = 22809;
  return nccl::kSuccess;
}

GRADRAIL_SIMULATED_CONTROL Result ncclCommInitAll(ncclComm** communicators, int count, const int* ordinals) {
  if (count <= 0) return kInvalidArgument;
  if (has_duplicates(count, ordinals)) return nccl::kInvalidUsage;  // as the real one: a GPU has one rank
  auto group = std::make_shared<Group>();
  group->ranks = static_cast<size_t>(count);
  {
    const gradrail::MutexLock lock(group->mutex);
    group->under_way.resize(group->ranks);
  }
  for (int i = 0; i < count; ++i) communicators[i] = new ncclComm{group, static_cast<size_t>(i), ordinals[i]};
  return nccl::kSuccess;
}

/// Waits for what it has to do, for ever where a peer does not come, as the real one.
GRADRAIL_SIMULATED_CONTROL Result ncclCommDestroy(ncclComm* communicator) {
  {
    gradrail::MutexLock lock(communicator->group->mutex);
    while (communicator->group->under_way[communicator->rank] != 0) communicator->group->changed.wait(lock);
  }
  delete communicator;
  return nccl::kSuccess;
}

/// Ends what waits for peers; a device that does not answer it waits for, as the real one.
GRADRAIL_SIMULATED_CONTROL Result ncclCommAbort(ncclComm* communicator) {
  const std::shared_ptr<Group> group = communicator->group;
  gradrail::MutexLock lock(group->mutex);
  group->aborted = true;
  group->changed.notify_all();
  while (group->under_way[communicator->rank] != 0) group->changed.wait(lock);
  lock.unlock();
  delete communicator;
  return nccl::kSuccess;
}

GRADRAIL_SIMULATED_CONTROL Result ncclCommGetAsyncError(ncclComm*, Result* error) {
  *error = nccl::kSuccess;
  return nccl::kSuccess;
}

GRADRAIL_SIMULATED_CONTROL const char* ncclGetErrorString(Result result) {
  switch (result) {
    case nccl::kSuccess:
      return "no error";
    case kInvalidArgument:
      return "invalid argument";
    case nccl::kInvalidUsage:
      return "invalid usage";
    default:
      return "internal error";
  }
}

GRADRAIL_SIMULATED_CONTROL Result ncclAllReduce(const void* from, void* to, size_t count, int type, int operation,
                                                ncclComm* communicator, cuda::Stream stream) {
  const bool known = type == nccl::kFloat32 && operation == nccl::kAverage;
  const bool usable = gradrail_simulated_is_usable(from, count * sizeof(float)) != 0 &&
                      gradrail_simulated_is_usable(to, count * sizeof(float)) != 0;
  if (!known || !usable || gradrail_simulated_current() != communicator->ordinal) return kInvalidArgument;
  grouped.push_back({communicator->group, stream, communicator->rank, communicator->next_round++,
                     static_cast<const float*>(from), static_cast<float*>(to), count});
  return group_depth > 0 ? nccl::kSuccess : launch(std::exchange(grouped, {}));
}

GRADRAIL_SIMULATED_CONTROL Result ncclGroupStart() {
  ++group_depth;
  return nccl::kSuccess;
}

GRADRAIL_SIMULATED_CONTROL Result ncclGroupEnd() {
  if (group_depth == 0) return nccl::kInvalidUsage;
  return --group_depth > 0 ? nccl::kSuccess : launch(std::exchange(grouped, {}));
}
