#include "worker/trainer/tower.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/resource_limits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "worker/models/elementwise.h"

namespace gradrail::worker {

namespace {

/// Interval of the owner's work while the towers compute: a bucket takes about as long from a device to the host.
constexpr auto kBetweenTurns = std::chrono::microseconds(50);

}  // namespace

/// A thread with its copy of the model; it runs its jobs in order.
class Towers::Tower {
 public:
  absl::Status start() {
    GRADRAIL_ASSIGN_OR_RETURN(thread_, start_thread("of a tower", [this] { run(); }));
    return absl::OkStatus();
  }
  ~Tower() {
    tell({});
    if (thread_.joinable()) thread_.join();
  }

  /// Queues a job after all former jobs; no job: the end.
  void tell(std::function<void()> job) {
    {
      const MutexLock lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    posted_.notify_all();
  }

  void adopt(std::unique_ptr<Workload> workload) {
    workload_ = std::move(workload);
    size_t elements = 0;
    for (const Tensor& tensor : workload_->schema()) elements += tensor.elements();
    // Only the first gradient touches this memory, so that it is on the node where this thread computes.
    gradients_.reset(new float[elements]);
    float* next = gradients_.get();
    for (const Tensor& tensor : workload_->schema()) {
      spans_.emplace_back(next, tensor.elements());
      next += tensor.elements();
    }
  }

  Workload& workload() { return *workload_; }
  const Workload& workload() const { return *workload_; }
  Gradients gradients() const { return spans_; }
  absl::StatusOr<float> cost = 0.0f;
  absl::Status started;

 private:
  void run() {
    while (true) {
      std::function<void()> job;
      {
        MutexLock lock(mutex_);
        while (jobs_.empty()) posted_.wait(lock);
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
      if (!job) break;
      job();
    }
    workload_.reset();  // destroyed in the thread that made it
  }

  std::unique_ptr<Workload> workload_;
  std::unique_ptr<float[]> gradients_;
  std::vector<absl::Span<float>> spans_;  // a span for each tensor, into gradients_

  Mutex mutex_;
  ConditionVariable posted_;
  std::deque<std::function<void()>> jobs_ ABSL_GUARDED_BY(mutex_);  // one job at most, and the end
  std::thread thread_;                                              // last: it uses all of the above
};

absl::StatusOr<std::unique_ptr<Towers>> Towers::create(size_t count, const Make& make,
                                                       const std::function<void(size_t tower)>& on_thread,
                                                       gpu::Reduce reduce) {
  GRADRAIL_CHECK(count > 0);
  std::unique_ptr<Towers> towers(new Towers);
  // All before the first job, which refers to the arguments of this function.
  for (size_t i = 0; i < count; ++i)
    GRADRAIL_RETURN_IF_ERROR(towers->towers_.emplace_back(std::make_unique<Tower>())->start());
  for (size_t i = 0; i < count; ++i) {
    Tower& tower = *towers->towers_[i];
    tower.tell([&, i] {
      if (on_thread) on_thread(i);
      absl::StatusOr<std::unique_ptr<Workload>> workload = make(i);
      tower.started = workload.status();
      if (workload.ok()) tower.adopt(*std::move(workload));
      towers->finished();
    });
  }
  // This wait precedes any return: the jobs refer to the arguments of this function.
  towers->wait_finished(count);
  for (const std::unique_ptr<Tower>& tower : towers->towers_) {
    if (!tower->started.ok()) return tower->started;
  }
  {
    const MutexLock lock(towers->mutex_);
    towers->arrived_.resize(towers->schema().size());
  }
  GRADRAIL_RETURN_IF_ERROR(towers->choose_sum(reduce));
  return towers;
}

Towers::~Towers() {
  sum_.reset();     // destroyed while the memory of its sums exists
  towers_.clear();  // joins their threads before the members that they use here are destroyed
}

const Schema& Towers::schema() const { return towers_[0]->workload().schema(); }

void Towers::initialise(uint64_t seed, Gradients parameters) const {
  towers_[0]->workload().initialise(seed, parameters);
}

std::string Towers::launches() const { return towers_[0]->workload().launches(); }

size_t Towers::batches_per_epoch() const { return towers_[0]->workload().batches_per_epoch(); }

size_t Towers::batch_size() const { return towers_.size() * towers_[0]->workload().batch_size(); }

void Towers::finished() {
  const MutexLock lock(mutex_);
  ++done_;
  changed_.notify_all();
}

void Towers::wait_finished(size_t count) {
  MutexLock lock(mutex_);
  while (done_ != count) changed_.wait(lock);
  done_ = 0;
}

/// Chooses the sum: devices that all towers have average without the host; any other sum uses the owner's memory.
absl::Status Towers::choose_sum(gpu::Reduce reduce) {
  if (reduce == gpu::Reduce::host) return absl::OkStatus();
  std::vector<gpu::Compute*> devices;
  for (const std::unique_ptr<Tower>& tower : towers_) devices.push_back(tower->workload().device());
  const auto on_cpus = std::find(devices.begin(), devices.end(), nullptr);
  if (on_cpus != devices.end()) {
    if (reduce != gpu::Reduce::nccl) return absl::OkStatus();
    return absl::FailedPreconditionError(
        fmt::format("--reduce nccl: tower {} computes on CPUs: leave --reduce out, or have a GPU for each tower "
                    "(gradrail info)",
                    on_cpus - devices.begin()));
  }
  absl::StatusOr<std::unique_ptr<gpu::TowerSum>> sum = gpu::tower_sum(devices, {.reduce = gpu::Reduce::nccl});
  if (!sum.ok()) {
    if (reduce == gpu::Reduce::nccl)
      return absl::Status(sum.status().code(), fmt::format("--reduce nccl: {}", message_of(sum.status())));
    log_info("the towers' gradients are averaged by the host: {}", message_of(sum.status()));
    return absl::OkStatus();
  }
  sum_ = *std::move(sum);
  for (size_t i = 0; i < towers_.size(); ++i) towers_[i]->workload().average_by(sum_.get(), i);
  return absl::OkStatus();
}

void Towers::gradient_ready(size_t tensor) {
  const MutexLock lock(mutex_);
  // A sum between devices is the mean of all already.
  if (++arrived_[tensor] < towers_.size() && sum_ == nullptr) return;
  complete_.push_back(tensor);
  changed_.notify_all();
}

/// Computes one step in the tower's thread.
void Towers::compute(size_t index, uint64_t step, Parameters parameters, Gradients gradients) {
  Tower& tower = *towers_[index];
  tower.workload().seek(step);
  tower.cost = tower.workload().step(parameters, sum_ == nullptr ? tower.gradients() : gradients,
                                     [this](size_t tensor) { gradient_ready(tensor); });
  if (!tower.cost.ok()) {
    const absl::Status why(tower.cost.status().code(),
                           fmt::format("tower {}: {}", index, message_of(tower.cost.status())));
    // The other towers wait for this one in the all-reduce: only an abort ends their wait.
    if (sum_ != nullptr) sum_->abort(why);
    const MutexLock lock(mutex_);
    failure_.Update(why);
    changed_.notify_all();
  }
  finished();
  tower.workload().prefetch();  // the next batch is prepared while this one's gradient is under way
}

void Towers::average_tensor(size_t tensor, absl::Span<float> target) const {
  // The sources have the order of the towers, so that the sum does not depend on which one was first.
  std::vector<const float*> sources;
  for (const std::unique_ptr<Tower>& tower : towers_) sources.push_back(tower->gradients()[tensor].data());
  average(sources, target.size(), target.data());
}

/// Index of a tensor that all towers have, for the average; none: a tower failed, and no more will follow.
std::optional<size_t> Towers::next_complete() {
  MutexLock lock(mutex_);
  TimePoint turn = Clock::now() + kBetweenTurns;
  while (failure_.ok() && complete_.empty()) {
    if (meanwhile_ == nullptr) {
      changed_.wait(lock);
      continue;
    }
    if (changed_.wait_until(lock, turn)) continue;
    // Towers must be able to announce gradients while the owner works.
    lock.unlock();
    meanwhile_();
    lock.lock();
    turn = Clock::now() + kBetweenTurns;
  }
  if (!failure_.ok()) return std::nullopt;
  const size_t tensor = complete_.front();
  complete_.pop_front();
  return tensor;
}

absl::StatusOr<float> Towers::mean_cost() {
  {
    // The first failure: those of the others may only follow from it.
    const MutexLock lock(mutex_);
    if (!failure_.ok()) return std::exchange(failure_, absl::OkStatus());
  }
  double cost = 0.0;
  for (const std::unique_ptr<Tower>& tower : towers_) cost += *tower->cost;
  return static_cast<float>(cost / static_cast<double>(towers_.size()));
}

absl::StatusOr<float> Towers::step(Parameters parameters, Gradients gradients, const GradientReady& ready) {
  {
    const MutexLock lock(mutex_);
    std::fill(arrived_.begin(), arrived_.end(), size_t{0});
    complete_.clear();
  }
  for (size_t i = 0; i < towers_.size(); ++i) {
    towers_[i]->tell([this, i, step = step_, parameters, gradients] { compute(i, step, parameters, gradients); });
  }
  ++step_;
  for (size_t averaged = 0; averaged < gradients.size(); ++averaged) {
    const std::optional<size_t> tensor = next_complete();
    // The step still waits below: towers that did not fail use the caller's spans until they finish.
    if (!tensor.has_value()) break;
    if (sum_ == nullptr) average_tensor(*tensor, gradients[*tensor]);
    if (ready) ready(*tensor);
  }
  wait_finished(towers_.size());
  return mean_cost();
}

std::optional<float> Towers::batch_accuracy() {
  std::vector<std::optional<float>> shares(towers_.size());
  for (size_t i = 0; i < towers_.size(); ++i) {
    towers_[i]->tell([this, i, &share = shares[i]] {
      share = towers_[i]->workload().batch_accuracy();
      finished();
    });
  }
  wait_finished(towers_.size());
  float sum = 0.0f;
  for (const std::optional<float>& share : shares) {
    if (!share.has_value()) return std::nullopt;
    sum += *share;
  }
  return sum / static_cast<float>(towers_.size());
}

absl::StatusOr<Verdict> Towers::verdict(Parameters parameters) {
  absl::StatusOr<Verdict> verdict = Verdict();
  towers_[0]->tell([&] {  // runs in its own thread: a copy of the model has one owner
    verdict = towers_[0]->workload().verdict(parameters);
    finished();
  });
  wait_finished(1);
  return verdict;
}

DeviceBlock Towers::device_block() { return sum_ == nullptr ? DeviceBlock{} : towers_[0]->workload().device_block(); }

void Towers::stay_on_device() {
  const DeviceBlock block = device_block();
  if (block.parameters == nullptr) return;
  for (size_t i = 0; i < towers_.size(); ++i) {
    towers_[i]->workload().stay_on_device();
    // The client updates only the first tower's parameters.
    if (i > 0) towers_[i]->workload().copy_parameters_from(block.parameters);
  }
}

void Towers::release_memory() {
  for (const std::unique_ptr<Tower>& tower : towers_) {
    tower->tell([this, &tower = *tower] {
      tower.workload().release_memory();
      finished();
    });
  }
  wait_finished(towers_.size());
}

}  // namespace gradrail::worker
