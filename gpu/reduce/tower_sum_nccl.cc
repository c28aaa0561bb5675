#include "gpu/reduce/tower_sum_nccl.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/resource_limits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gpu/compute/device_memory.h"
#include "gpu/driver/native_error.h"

namespace gradrail::gpu {
namespace {

/// Time that abort() gives a call into NCCL to return before it aborts the communicator during the call, which NCCL
/// allows. The call may itself wait for the tower that was lost.
constexpr auto kTimeout = std::chrono::milliseconds(500);
/// Time limit of NCCL's abort on all GPUs: each needs milliseconds, and a lost one may never answer.
constexpr Duration kAbortDeadline = std::chrono::seconds(5);

/// Threads that abort one communicator each. They continue after the timeout of their waiter, if a GPU does not answer.
class Aborts {
 public:
  explicit Aborts(size_t count) : ended_(count) {}

  static std::shared_ptr<Aborts> start(const nccl::Functions& api, const std::vector<nccl::Communicator>& those) {
    // Shared with threads that may be left behind.
    auto aborts = std::make_shared<Aborts>(those.size());
    for (size_t i = 0; i < those.size(); ++i) {
      // The GPU counts as one that does not answer if there is no thread.
      absl::StatusOr<std::thread> thread =
          start_thread("that aborts NCCL", [aborts, i, abort = api.ncclCommAbort, communicator = those[i]] {
            abort(communicator);
            aborts->end(i);
          });
      if (thread.ok()) thread->detach();
    }
    return aborts;
  }

  /// Waits, and returns which have ended.
  std::vector<bool> wait(Duration timeout) {
    const TimePoint deadline = Clock::now() + timeout;
    MutexLock lock(mutex_);
    while (std::find(ended_.begin(), ended_.end(), false) != ended_.end() && changed_.wait_until(lock, deadline)) {
    }
    return ended_;
  }

 private:
  void end(size_t i) {
    const MutexLock lock(mutex_);
    ended_[i] = true;
    changed_.notify_all();
  }

  Mutex mutex_;
  ConditionVariable changed_;
  std::vector<bool> ended_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

NcclTowerSum::NcclTowerSum(const NcclLibrary& library, Duration answer_timeout)
    : library_(library), name_(fmt::format("NCCL {}", library.version)), answer_timeout_(answer_timeout) {}

absl::StatusOr<std::unique_ptr<NcclTowerSum>> NcclTowerSum::create(const NcclLibrary& library,
                                                                   absl::Span<DeviceCompute* const> towers,
                                                                   Duration answer_timeout) {
  std::unique_ptr<NcclTowerSum> sum(new NcclTowerSum(library, answer_timeout));
  std::vector<int> ordinals;
  for (DeviceCompute* tower : towers) {
    GRADRAIL_ASSIGN_OR_RETURN(Stream stream, Stream::create(tower->context()));
    GRADRAIL_ASSIGN_OR_RETURN(Event behind, Event::create(tower->context()));
    sum->towers_.push_back(std::make_unique<Tower>(*tower, std::move(stream), std::move(behind), answer_timeout));
    ordinals.push_back(tower->context()->device().ordinal);
  }
  std::vector<nccl::Communicator> communicators(towers.size(), nullptr);
  GRADRAIL_RETURN_IF_ERROR(library.status(
      library.api.ncclCommInitAll(communicators.data(), static_cast<int>(towers.size()), ordinals.data()),
      fmt::format("connecting {} GPUs", towers.size())));
  for (size_t i = 0; i < towers.size(); ++i) sum->towers_[i]->communicator = communicators[i];
  return sum;
}

NcclTowerSum::~NcclTowerSum() {
  bool is_drained = true;
  for (const auto& tower : towers_) is_drained = drain(*tower) && is_drained;
  // NCCL ends a communicator in peace only when all it has to do is done.
  if (!is_drained) abort(absl::UnavailableError("the towers ended before means of their gradients were complete"));
  if (failed_) return;  // the communicators ended with abort()
  for (const auto& tower : towers_) {
    if (tower->communicator == nullptr) continue;
    tower->compute.context()->make_current();
    library_.api.ncclCommDestroy(tower->communicator);
  }
}

/// Operations in flight use memory of the caller. Returns whether all of them have ended.
bool NcclTowerSum::drain(Tower& tower) {
  for (WaitInTurns wait;; wait.turn()) {
    const cuda::Result result = tower.marks.collect();
    if (result != cuda::kNotReady) return result == cuda::kSuccess;
    if (tower.marks.is_overdue()) return false;
  }
}

/// Waits until every tower has called once. In the first steps allocation, pinning, loading and the first call of NCCL
/// may wait for other devices. A kernel that already runs would wait for this tower.
absl::Status NcclTowerSum::wait_for_all_towers(Tower& tower) {
  if (std::exchange(tower.has_started, true)) return absl::OkStatus();
  const TimePoint deadline = Clock::now() + answer_timeout_;
  MutexLock lock(mutex_);
  if (++started_count_ == towers_.size()) changed_.notify_all();
  bool in_time = true;
  while (started_count_ < towers_.size() && !failed_ && in_time) in_time = changed_.wait_until(lock, deadline);
  if (started_count_ == towers_.size() || failed_) return error_;
  return absl::UnavailableError(fmt::format("{}: of {} towers, {} began to average gradients within {:.1f} s",
                                            tower.compute.name(), towers_.size(), started_count_,
                                            std::chrono::duration<double>(answer_timeout_).count()));
}

absl::StatusOr<CopyTicket> NcclTowerSum::start(size_t index, absl::Span<const Part> parts) {
  Tower& tower = *towers_[index];
  if (failed_) return error();
  tower.compute.context()->make_current();
  absl::Status enqueued = wait_for_all_towers(tower);
  if (enqueued.ok()) enqueued = enqueue(tower, parts);
  if (enqueued.ok()) return tower.last;
  abort(enqueued);
  return error();
}

absl::Status NcclTowerSum::enqueue(Tower& tower, absl::Span<const Part> parts) {
  const SharedContext& context = tower.compute.context();
  // The reduction has a separate stream: without the event it could read a gradient that is still computed.
  GRADRAIL_RETURN_IF_ERROR(context->status(tower.compute.stream().record(tower.behind), "marking a gradient"));
  GRADRAIL_RETURN_IF_ERROR(context->status(tower.stream.wait_for(tower.behind), "waiting for a gradient"));
  GRADRAIL_RETURN_IF_ERROR(reduce(tower, parts));
  for (const Part& part : parts) {
    if (part.host != nullptr && part.count > 0) GRADRAIL_RETURN_IF_ERROR(copy(tower, part));
  }
  return context->status(tower.marks.mark(tower.stream, ++tower.last), "marking a mean");
}

/// A copy to memory that is not pinned blocks the call in the driver, which then waits for the other towers.
absl::Status NcclTowerSum::copy(Tower& tower, const Part& part) {
  const PrimaryContext& context = *tower.compute.context();
  const size_t bytes = part.count * sizeof(float);
  if (is_pageable(context, part.host, bytes)) {
    tower.deliveries.push_back({tower.last + 1, part});
    return absl::OkStatus();
  }
  return context.status(
      context.api().cuMemcpyAsync(address_of(part.host), address_of(part.gradient), bytes, tower.stream.handle()),
      fmt::format("copying a mean of {} bytes from it", bytes));
}

void NcclTowerSum::deliver(Tower& tower, CopyTicket ticket) {
  for (auto& means = tower.deliveries; !failed_ && !means.empty() && means.front().ticket <= ticket;) {
    const Part mean = means.front().part;
    means.pop_front();
    const absl::Status copied =
        tower.compute.wait(tower.compute.download(mean.host, mean.gradient, mean.count * sizeof(float)));
    if (!copied.ok()) abort(copied);
  }
}

/// NCCL makes one kernel of the calls in a group. The group belongs to the calling thread, so that it ends in any case.
absl::Status NcclTowerSum::reduce_in_group(Tower& tower, absl::Span<const Part> parts) {
  absl::Status status = library_.status(library_.api.ncclGroupStart(), "starting a group");
  if (!status.ok()) return status;
  for (const Part& part : parts) {
    if (!status.ok()) break;
    const nccl::Result result = library_.api.ncclAllReduce(part.gradient, part.gradient, part.count, nccl::kFloat32,
                                                           nccl::kAverage, tower.communicator, tower.stream.handle());
    if (result != nccl::kSuccess)
      status = library_.status(result, fmt::format("averaging {} elements of {}", part.count, tower.compute.name()));
  }
  const nccl::Result ended = library_.api.ncclGroupEnd();
  return status.ok() ? library_.status(ended, fmt::format("averaging gradients of {}", tower.compute.name())) : status;
}

absl::Status NcclTowerSum::reduce(Tower& tower, absl::Span<const Part> parts) {
  std::lock_guard lock(tower.calling);
  if (failed_) return error();
  const absl::Status status = reduce_in_group(tower, parts);
  // NCCL only reports that CUDA failed.
  const cuda::Result device = status.ok() ? cuda::kSuccess : tower.behind.query();
  return is_lasting(device) ? tower.compute.context()->status(device, "averaging gradients") : status;
}

bool NcclTowerSum::is_done(size_t index, CopyTicket ticket) {
  if (failed_) return true;
  Tower& tower = *towers_[index];
  const cuda::Result result = tower.marks.collect();
  if (result != cuda::kSuccess && result != cuda::kNotReady) {
    abort(tower.compute.context()->status(result, "averaging gradients"));
  } else if (tower.marks.is_overdue()) {
    abort(absl::UnavailableError(
        fmt::format("{}: no mean of the towers' gradients for {:.1f} s: another tower or its GPU does not respond",
                    tower.compute.name(), std::chrono::duration<double>(answer_timeout_).count())));
  }
  if (!failed_ && !tower.marks.is_reached(ticket)) return false;
  deliver(tower, ticket);
  return true;
}

absl::Status NcclTowerSum::wait(size_t index, CopyTicket ticket) {
  for (WaitInTurns wait; !is_done(index, ticket);) wait.turn();
  return error();
}

void NcclTowerSum::abort(const absl::Status& why) {
  {
    const MutexLock lock(mutex_);
    if (failed_) return;
    error_ = why;
    failed_ = true;
    changed_.notify_all();
  }
  abort_communicators();
}

void NcclTowerSum::abort_communicators() {
  std::vector<Tower*> running;
  std::vector<nccl::Communicator> communicators;
  for (const auto& tower : towers_) {
    // Nothing answers on an abandoned device, NCCL's kernels there neither: its communicator is left as it is.
    if (tower->communicator == nullptr || tower->compute.context()->is_abandoned()) continue;
    const std::unique_lock calling(tower->calling, kTimeout);
    running.push_back(tower.get());
    communicators.push_back(tower->communicator);
  }
  const std::vector<bool> ended =
      Aborts::start(library_.api, communicators)->wait(std::min(kAbortDeadline, answer_timeout_));
  for (size_t i = 0; i < running.size(); ++i) {
    if (!ended[i]) running[i]->compute.context()->abandon();
  }
}

absl::Status NcclTowerSum::error() {
  const MutexLock lock(mutex_);
  return error_;
}

}  // namespace gradrail::gpu
