#include "gpu/tower_sum_nccl.h"

#include "base/status.h"
#include "fmt/format.h"
#include "gpu/device_memory.h"
#include "gpu/native_error.h"

namespace gradrail::gpu {
namespace {

/// How long abort() lets a call into NCCL come back before it aborts under it, which NCCL allows: a call may itself be
/// waiting for the tower that is gone.
constexpr auto kPatience = std::chrono::milliseconds(500);

}  // namespace

NcclTowerSum::NcclTowerSum(const NcclLibrary& library, Duration answer_timeout)
    : library_(library), name_(fmt::format("NCCL {}", library.version)), answer_timeout_(answer_timeout) {}

absl::StatusOr<std::unique_ptr<NcclTowerSum>> NcclTowerSum::create(const NcclLibrary& library,
                                                                   absl::Span<DeviceCompute* const> towers,
                                                                   Duration answer_timeout) {
  std::unique_ptr<NcclTowerSum> sum(new NcclTowerSum(library, answer_timeout));
  std::vector<int> ordinals;
  for (DeviceCompute* tower : towers) {
    absl::StatusOr<Stream> stream = Stream::create(tower->context());
    if (!stream.ok()) return stream.status();
    absl::StatusOr<Event> behind = Event::create(tower->context());
    if (!behind.ok()) return behind.status();
    sum->towers_.push_back(std::make_unique<Tower>(*tower, *std::move(stream), *std::move(behind), answer_timeout));
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
  for (const auto& tower : towers_) settle(*tower);
  if (failed_) return;  // the communicators ended with abort()
  for (const auto& tower : towers_) {
    if (tower->communicator == nullptr) continue;
    tower->compute.context()->make_current();
    library_.api.ncclCommDestroy(tower->communicator);
  }
}

/// What is under way uses memory of the caller's.
void NcclTowerSum::settle(Tower& tower) {
  for (WaitInTurns wait; tower.marks.collect() == cuda::kNotReady && !tower.marks.is_overdue();) wait.turn();
}

absl::StatusOr<CopyTicket> NcclTowerSum::start(size_t index, float* gradient, size_t count, float* host) {
  Tower& tower = *towers_[index];
  if (failed_) return error();
  tower.compute.context()->make_current();
  absl::Status enqueued = enqueue(tower, gradient, count, host);
  if (enqueued.ok()) return tower.last;
  abort(enqueued);
  return error();
}

absl::Status NcclTowerSum::enqueue(Tower& tower, float* gradient, size_t count, float* host) {
  const SharedContext& context = tower.compute.context();
  GRADRAIL_RETURN_IF_ERROR(context->status(tower.compute.stream().record(tower.behind), "marking a gradient"));
  GRADRAIL_RETURN_IF_ERROR(context->status(tower.stream.wait_for(tower.behind), "waiting for a gradient"));
  GRADRAIL_RETURN_IF_ERROR(reduce(tower, gradient, count));
  if (host != nullptr && count > 0) {
    GRADRAIL_RETURN_IF_ERROR(context->status(context->api().cuMemcpyAsync(address_of(host), address_of(gradient),
                                                                          count * sizeof(float), tower.stream.handle()),
                                             fmt::format("copying the mean of {} elements from it", count)));
  }
  return context->status(tower.marks.mark(tower.stream, ++tower.last), "marking a mean");
}

absl::Status NcclTowerSum::reduce(Tower& tower, float* gradient, size_t count) {
  std::lock_guard lock(tower.calling);
  if (failed_) return error();
  const absl::Status status =
      library_.status(library_.api.ncclAllReduce(gradient, gradient, count, nccl::kFloat32, nccl::kAverage,
                                                 tower.communicator, tower.stream.handle()),
                      fmt::format("averaging {} elements of {}", count, tower.compute.name()));
  // NCCL only says that CUDA said no.
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
        fmt::format("{}: no mean of the towers' gradients for {:.1f} s: another tower or its GPU does not come",
                    tower.compute.name(), std::chrono::duration<double>(answer_timeout_).count())));
  }
  return failed_ || tower.marks.is_reached(ticket);
}

absl::Status NcclTowerSum::wait(size_t index, CopyTicket ticket) {
  for (WaitInTurns wait; !is_done(index, ticket);) wait.turn();
  return error();
}

void NcclTowerSum::abort(const absl::Status& why) {
  {
    std::lock_guard lock(mutex_);
    if (failed_) return;
    error_ = why;
    failed_ = true;
  }
  for (const auto& tower : towers_) {
    std::unique_lock calling(tower->calling, kPatience);
    library_.api.ncclCommAbort(tower->communicator);
  }
}

absl::Status NcclTowerSum::error() {
  std::lock_guard lock(mutex_);
  return error_;
}

}  // namespace gradrail::gpu
