// The source of faults of a World.
#include <algorithm>

#include "base/check.h"
#include "fmt/format.h"
#include "tests/simulation/disk.h"
#include "tests/simulation/runtime.h"
#include "tests/simulation/world.h"

namespace gradrail::simulation {
namespace {

constexpr int64_t kMs = 1'000'000;
/// After the last fault; longer than every limit of a task.
constexpr int64_t kOperatorDelay = 300'000 * kMs;

Scheduler& scheduler() { return Scheduler::instance(); }

constexpr std::array<const char*, kFaults> kNames = {"delayed messages",
                                                     "data connections cut",
                                                     "control connections cut",
                                                     "partitions",
                                                     "one-way partitions",
                                                     "isolated tasks",
                                                     "worker crashes",
                                                     "server crashes",
                                                     "power losses",
                                                     "paused processes",
                                                     "wall clock jumps",
                                                     "full disks",
                                                     "flipped bits",
                                                     "lost writes",
                                                     "torn writes",
                                                     "misdirected writes",
                                                     "fsyncs without effect",
                                                     "disk errors",
                                                     "writes undone by power loss"};

}  // namespace

const char* name_of(Fault fault) { return kNames[static_cast<size_t>(fault)]; }

/// A fiber of the simulation: faults, then the recovery.
void World::inject() {
  net_.set_delays(static_cast<uint32_t>(random_.below(200)), static_cast<int64_t>(1 + random_.below(250)) * kMs);
  begin_disk_faults();
  while (faults_left_ > 0 && !is_over()) {
    scheduler().sleep_until(scheduler().now() +
                            static_cast<int64_t>(random_.below(2 * static_cast<uint64_t>(fault_gap_ns_) + 1)));
    inject_one();
    --faults_left_;
  }
  heal();
  end_disk_faults();
  net_.set_delays(0, 0);
  faults_end_ns_ = scheduler().now();
  is_healed_ = true;
  scheduler().trace("the faults end");
  scheduler().sleep_until(faults_end_ns_ + kOperatorDelay);
  restart_finishers();
  // Time passes although nothing may happen: a run that hangs reaches its limit.
  while (true) scheduler().sleep_until(scheduler().now() + 1000 * kMs);
}

/// The operator's part of docs/design/exchange.md. If all other tasks are newcomers, no task remembers that a worker
/// has finished, and they wait for it. If a server or a worker is older than that, the tasks must end without help.
void World::restart_finishers() {
  int64_t finished_ns = 0;
  for (const Task& task : tasks_) {
    if (!task.is_server && task.is_done) finished_ns = std::max(finished_ns, task.ended_ns);
  }
  const bool is_forgotten = std::all_of(tasks_.begin(), tasks_.end(), [finished_ns](const Task& task) {
    return (task.is_done && !task.is_server) || task.started_ns > finished_ns;
  });
  if (is_over() || finished_ns == 0 || !is_forgotten) return;
  for (uint32_t i = 0; i < tasks_.size(); ++i) {
    if (tasks_[i].is_server || !tasks_[i].is_done) continue;
    tasks_[i].is_done = false;
    start_after(i, 0);
  }
}

void World::inject_one() {
  for (int attempt = 0; attempt < 20; ++attempt) {
    const auto fault = static_cast<Fault>(1 + random_.below(static_cast<uint64_t>(Fault::bit_rot)));
    if (!try_fault(fault)) continue;
    ++counts_[static_cast<size_t>(fault)];
    return;
  }
}

bool World::try_fault(Fault fault) {
  switch (fault) {
    case Fault::link_cut:
      return net_.cut_link();
    case Fault::connection_cut:
      if (!may_lose_workers_ || !net_.cut_connection()) return false;
      ledger_.stop_exact("the end of a control connection is the loss of its worker");
      return true;
    case Fault::partition:
      return cut_between(true, false);
    case Fault::one_way_partition:
      return cut_between(false, random_.below(2) == 0 && may_lose_workers_);
    case Fault::isolation:
      return may_lose_workers_ && cut_between(true, true);
    case Fault::worker_crash:
      return may_lose_workers_ &&
             crash(worker_task(static_cast<uint32_t>(random_.below(shape_.workers))), random_.below(4) == 0);
    case Fault::server_crash:
      return crash(static_cast<uint32_t>(random_.below(server_tasks())), false);
    case Fault::power_loss:
      return crash(static_cast<uint32_t>(random_.below(server_tasks())), true);
    case Fault::pause: {
      const Task& task = tasks_[random_.below(tasks_.size())];
      if (task.process == 0) return false;
      const auto ms = static_cast<int64_t>(1 + random_.below(may_lose_workers_ ? 8000 : 1500));
      scheduler().trace(
          fmt::format("fault: {} stops for {} ms", name_of_task(static_cast<uint32_t>(&task - tasks_.data())), ms));
      scheduler().pause(task.process, scheduler().now() + ms * kMs);
      return true;
    }
    case Fault::clock_jump: {
      const Task& task = tasks_[random_.below(tasks_.size())];
      if (task.process == 0) return false;
      const auto ms = static_cast<int64_t>(random_.below(7'200'000)) - 3'600'000;
      scheduler().trace(fmt::format("fault: wall clock of {} jumps by {} ms",
                                    name_of_task(static_cast<uint32_t>(&task - tasks_.data())), ms));
      shift_wall_clock(task.process, ms * kMs);
      return true;
    }
    case Fault::disk_full:
      if (!shape_.checkpoints) return false;
      scheduler().trace("fault: the disk is full");
      Disk::instance().set_full(true);
      scheduler().at(scheduler().now() + static_cast<int64_t>(random_.below(2000)) * kMs,
                     [] { Disk::instance().set_full(false); });
      return true;
    case Fault::bit_rot:
      if (!has_disk_faults_ || !Disk::instance().rot()) return false;
      scheduler().trace("fault: a bit of a checkpoint is flipped");
      return true;
    default:
      return false;
  }
}

/// Cuts the network between two tasks for a short time, or between one task and all others.
bool World::cut_between(bool both_ways, bool isolate) {
  const auto one = static_cast<uint32_t>(random_.below(tasks_.size()));
  const auto other = static_cast<uint32_t>(random_.below(tasks_.size()));
  if (one == other) return false;
  const auto ms = static_cast<int64_t>(isolate ? 100 + random_.below(14'000) : 50 + random_.below(2000));
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  for (uint32_t task = 0; task < tasks_.size(); ++task) {
    if (task == one || (!isolate && task != other)) continue;
    pairs.emplace_back(one, task);
    if (both_ways) pairs.emplace_back(task, one);
  }
  if (!both_ways && random_.below(2) == 0) {
    for (auto& [from, to] : pairs) std::swap(from, to);
  }
  scheduler().trace(fmt::format("fault: {} is cut {} {} for {} ms", name_of_task(one),
                                both_ways ? "from" : "one way, from", isolate ? "all" : name_of_task(other), ms));
  for (const auto& [from, to] : pairs) net_.set_cut(from, to, true);
  scheduler().at(scheduler().now() + ms * kMs, [this, pairs] {
    for (const auto& [from, to] : pairs) {
      if (net_.is_cut(from, to)) net_.set_cut(from, to, false);
    }
  });
  return true;
}

bool World::crash(uint32_t task, bool power) {
  Task& state = tasks_[task];
  if (state.process == 0 || state.is_done) return false;
  if (state.is_server && shape_.backups) {
    // Without a peer that has everything, the state is lost. No test can expect that a run survives this.
    const uint32_t peer = task < shape_.servers ? task + shape_.servers : task - shape_.servers;
    const bool level = tasks_[peer].process != 0 && !tasks_[peer].returns;
    if (!level && random_.below(4) != 0) return false;
  }
  scheduler().trace(fmt::format("fault: {} {}", name_of_task(task), power ? "loses power" : "crashes"));
  if (const std::string why = why_not_exact(); !why.empty()) lost_members_ = why;
  // A worker that is on its way back from this run has not returned yet.
  if (state.is_server && state.starts > 1 && began_from_a_copy(task)) has_copy_ = true;
  const ProcessId process = std::exchange(state.process, 0);
  if (power) net_.set_dark(task, true);
  net_.on_kill(process, power);
  control_.on_kill(process);
  scheduler().kill(process);
  if (power)
    Disk::instance().lose_power([this, task](ProcessId other) { return other != 0 && net_.task_of(other) == task; });
  start_after(task, static_cast<int64_t>(100 + random_.below(random_.below(3) == 0 ? 12'000 : 2'000)) * kMs);
  return true;
}

void World::heal() {
  net_.heal();
  Disk::instance().set_full(false);
}

void World::begin_disk_faults() {
  if (!has_disk_faults_) return;
  for (size_t i = 0; i < kDiskFaults; ++i) {
    Disk::instance().set_rate(static_cast<DiskFault>(i),
                              random_.below(2) == 0 ? 0 : static_cast<uint32_t>(random_.below(40)));
  }
}

void World::end_disk_faults() {
  for (size_t i = 0; i < kDiskFaults; ++i) Disk::instance().set_rate(static_cast<DiskFault>(i), 0);
}

}  // namespace gradrail::simulation
