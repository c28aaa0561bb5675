#include "tests/simulation/world.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "ps/control/control_plane.h"
#include "ps/protocol/control.pb.h"
#include "ps/server.h"
#include "tests/simulation/disk.h"
#include "tests/simulation/runtime.h"
#include "worker/client/client_impl.h"

namespace gradrail::simulation {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kSecond = 1'000 * kMs;
/// After the last fault the run ends within this time: joins, takeovers and returns have limits of up to 120 s.
constexpr int64_t kRecovery = 600 * kSecond;
constexpr uint64_t kMaxSwitches = 20'000'000;
constexpr int kMaxStarts = 60;

Scheduler& scheduler() { return Scheduler::instance(); }

std::string folder_of(int pid) {
  return fmt::format("{}/gradrail-simulation-{}", std::filesystem::exists("/dev/shm") ? "/dev/shm" : "/tmp", pid);
}

void draw_quorum(Random& random, Shape& shape) {
  const uint64_t choice = random.below(3);
  shape.grace.is_auto = choice == 1;
  if (choice == 2)
    shape.grace.seconds = 0.001 * static_cast<double>(1 + random.below(random.below(2) == 0 ? 50 : 3000));
  shape.drops_late = random.below(3) == 0;
}

Shape draw_shape(Random& random) {
  Shape shape;
  shape.mode = static_cast<ModeKind>(random.below(4));
  shape.workers = 1 + static_cast<uint32_t>(random.below(kMaxSimulatedWorkers));
  if (random.below(3) == 0) shape.mode = ModeKind::sync;
  if (shape.mode == ModeKind::quorum) shape.bound = 1 + static_cast<uint32_t>(random.below(shape.workers));
  if (shape.mode == ModeKind::ssp) shape.bound = static_cast<uint32_t>(random.below(3));
  shape.servers = 1 + static_cast<uint32_t>(random.below(3));
  shape.shards_per_server = 1 + static_cast<uint32_t>(random.below(2));
  shape.backups = random.below(2) == 0;
  shape.checkpoints = random.below(4) != 0;
  shape.buckets = 1 + static_cast<uint32_t>(random.below(6));
  shape.steps = 10 + static_cast<uint32_t>(random.below(50));
  if (shape.mode == ModeKind::quorum) draw_quorum(random, shape);
  return shape;
}

/// Drawn apart: a run without them is the same with and without this function.
void draw_options(Random random, Shape& shape) {
  if (random.below(3) == 0) return;
  if (random.below(2) == 0) shape.fragments = 1 + static_cast<uint32_t>(random.below(shape.buckets));
  shape.weights = random.below(2) == 0;
  shape.few_slots = random.below(2) == 0;
  constexpr PushFormat kPushes[] = {PushFormat::fp32, PushFormat::bf16, PushFormat::int8, PushFormat::int4};
  constexpr PushFormat kTopk = {PushFormat::topk, 100};
  constexpr ReturnFormat kReturns[] = {ReturnFormat::fp32, ReturnFormat::bf16, ReturnFormat::delta};
  shape.push = kPushes[random.below(std::size(kPushes))];
  shape.returns = kReturns[random.below(std::size(kReturns))];
  // Several buckets of a shard share places only if it has several.
  if (shape.few_slots) shape.buckets += static_cast<uint32_t>(random.below(7));
  // The large chunks of this format make a run slow.
  if (random.below(16) == 0) shape.push = kTopk;
}

/// Drawn apart, too: the rest of the run is that of its seed.
void apply(const Stress& stress, Random random, Shape& shape) {
  if (stress.quorum && shape.mode != ModeKind::quorum) {
    shape.mode = ModeKind::quorum;
    shape.bound = 1 + static_cast<uint32_t>(random.below(shape.workers));
    draw_quorum(random, shape);
  }
  if (!stress.few_slots) return;
  shape.few_slots = true;
  shape.buckets = std::max(shape.fragments, 4 + static_cast<uint32_t>(random.below(8)));
}

Shape shape_of(uint64_t seed, const Stress& stress, Random& random) {
  Shape shape = draw_shape(random);
  draw_options(Random(seed, 6), shape);
  apply(stress, Random(seed, 7), shape);
  return shape;
}

/// Each fragment is one tensor; a model without fragments has two.
Schema schema_of(const Shape& shape) {
  const auto elements = static_cast<int64_t>(shape.elements());
  if (shape.fragments == 1) return {{"a", {elements - 5}}, {"b", {5}}};
  Schema schema;
  for (uint32_t i = 0; i < shape.fragments; ++i) {
    const std::string name = fmt::format("f{}", i);
    schema.push_back({name, {static_cast<int64_t>(shape.fragment(i).count)}, name});
  }
  return schema;
}

std::vector<int64_t> positions_of(const Client& client, const Shape& shape) {
  std::vector<int64_t> positions(shape.fragments);
  for (uint32_t i = 0; i < shape.fragments; ++i) positions[i] = client.position(i);
  return positions;
}

}  // namespace

World::World(uint64_t seed, const Stress& stress)
    : seed_(seed),
      random_(seed, 5),
      shape_(shape_of(seed, stress, random_)),
      net_(seed),
      control_(net_),
      ledger_(shape_),
      // Relative: texts with this path are the same in each run of a seed.
      folder_("disk") {
  faults_left_ = 4 + static_cast<uint32_t>(random_.below(40));
  fault_gap_ns_ = static_cast<int64_t>(50 + random_.below(1500)) * kMs;
  may_lose_workers_ = random_.below(2) == 0;
  has_disk_faults_ = random_.below(2) == 0;
  tasks_.resize(server_tasks() + shape_.workers);
  for (uint32_t i = 0; i < tasks_.size(); ++i) {
    tasks_[i].is_server = i < server_tasks();
    tasks_[i].index = tasks_[i].is_server ? i : i - server_tasks();
  }
  ledger_.reason_to_differ = [this] { return why_not_exact(); };
}

void World::remove_folder_of(int pid) {
  std::error_code ignored;
  std::filesystem::remove_all(folder_of(pid), ignored);
}

std::string World::name_of_task(uint32_t task) const {
  return fmt::format("{}/{}", tasks_[task].is_server ? "ps" : "worker", tasks_[task].index);
}

void World::start_after(uint32_t task, int64_t delay_ns) {
  tasks_[task].returns = true;
  scheduler().at(scheduler().now() + delay_ns, [this, task] { start(task); });
}

void World::start(uint32_t task) {
  Task& state = tasks_[task];
  GRADRAIL_CHECK(state.process == 0);
  state.returns = state.has_begun = false;
  net_.set_dark(task, false);
  state.process = next_process_++;
  state.started_ns = scheduler().now();
  net_.add_process(state.process, task);
  if (state.starts++ > 0 && !state.is_server) ledger_.stop_exact(name_of_task(task) + " was started again");
  scheduler().trace(fmt::format("{} starts", name_of_task(task)));
  scheduler().spawn(state.process, [this, task] { tasks_[task].is_server ? run_server(task) : run_worker(task); });
}

void World::end_process(uint32_t task, const absl::Status& status) {
  Task& state = tasks_[task];
  state.ended = status.ok() ? "ok" : status.ToString();
  scheduler().trace(fmt::format("{} ends: {}", name_of_task(task), state.ended));
  if (!status.ok() && !state.is_server) ledger_.stop_exact(name_of_task(task) + " has failed");
  const ProcessId process = std::exchange(state.process, 0);
  net_.on_kill(process, false);
  state.ended_ns = scheduler().now();
  state.is_done = status.ok();
  if (!state.is_done && state.starts < kMaxStarts) start_after(task, kSecond);
}

void World::run_server(uint32_t task) {
  const bool is_backup = task >= shape_.servers;
  ps::ServerOptions options{.task_index = task % shape_.servers,
                            .listen_address = control_address(task),
                            .advertised_host = "127.0.0.1",
                            .shard_count = shape_.shards_per_server,
                            .transports = {"loopback"}};
  for (uint32_t i = 0; i < shape_.workers; ++i) options.worker_names.push_back(control_address(worker_task(i)));
  if (shape_.backups) {
    options.replication_peer = control_address(is_backup ? task - shape_.servers : task + shape_.servers);
    options.begins_as_backup = is_backup;
  }
  if (shape_.checkpoints) options.checkpoint_dir = folder_;
  options.keep_checkpoints = 3;
  if (shape_.few_slots) options.slot_bytes = 1;
  options.wait.spin = Duration::zero();
  options.dialer = control_.dialer();
  options.listen = [this, task](ps::ControlPlane& plane, const ps::ServerOptions&) {
    return control_.listen(plane, task);
  };
  const std::atomic<bool> stop = false;
  absl::StatusOr<std::unique_ptr<ps::Server>> server = ps::Server::start(options);
  absl::Status ended = server.status();
  if (server.ok()) {
    ended = (*server)->wait_finished(stop);
    if (lost_members_.empty()) lost_members_ = why_not_exact();
    server->reset();
  }
  end_process(task, ended);
}

void World::run_worker(uint32_t task) { end_process(task, train(task)); }

absl::Status World::train(uint32_t task) {
  const uint32_t worker = tasks_[task].index;
  ClientOptions options;
  for (uint32_t i = 0; i < shape_.servers; ++i) {
    options.cluster.ps.push_back(control_address(i));
    if (shape_.backups) options.recovery.backups.push_back(control_address(i + shape_.servers));
  }
  for (uint32_t i = 0; i < shape_.workers; ++i) options.cluster.workers.push_back(control_address(worker_task(i)));
  options.task_index = worker;
  options.mode = {.kind = shape_.mode, .bound = shape_.bound, .grace = shape_.grace, .drops_late = shape_.drops_late};
  options.optimizer = {.kind = OptimizerKind::sgd, .learning_rate = 1.0f};
  options.compression = {.push = shape_.push, .returns = shape_.returns};
  options.bucket_bytes = static_cast<uint32_t>(shape_.bucket_elements() * sizeof(float));
  options.transport.order = {"loopback"};
  options.transport.wait.spin = Duration::zero();
  options.recovery.join_timeout = std::chrono::seconds(120);
  options.recovery.rejoin_timeout = std::chrono::seconds(60);
  options.hooks.log = [this](const std::string& text) {
    if (text.find("it has to join again") != std::string::npos) ledger_.stop_exact(text);  // steps were made without it
  };
  GRADRAIL_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client,
                            worker::ClientImpl::join_over(control_.dialer(), options, schema_of(shape_)));
  // One block: the tensors follow each other.
  const absl::Span<float> parameters(client->parameters(0).data(), shape_.elements());
  const std::vector<float> initial = ledger_.initial();
  std::copy(initial.begin(), initial.end(), parameters.begin());
  GRADRAIL_RETURN_IF_ERROR(client->start());
  std::vector<int64_t> positions = positions_of(*client, shape_);
  ledger_.on_start(worker, positions, parameters);
  tasks_[task].has_begun = true;
  scheduler().trace(fmt::format("worker/{} begins at {}", worker, fmt::join(positions, " ")));
  Random pace(seed_, 100 + next_process_);
  Saved saving;  // under way
  while (*std::min_element(positions.begin(), positions.end()) < int64_t{shape_.steps} && ledger_.violation().empty()) {
    GRADRAIL_RETURN_IF_ERROR(exchange(*client, worker, pace, positions));
    if (shape_.checkpoints && client->is_chief() && !client->checkpoints().is_under_way() && pace.below(4) == 0) {
      const uint64_t rejoins_before = client->statistics().now().rejoins;
      save(*client, worker, saving);
      // The servers have restored a checkpoint in the meantime: the parameters are other ones.
      if (client->statistics().now().rejoins != rejoins_before) begin_again(*client, worker, positions);
    }
    const uint64_t compute_ms = pace.below(100) == 0 ? pace.below(6000) : pace.below(60);
    scheduler().sleep_until(scheduler().now() + static_cast<int64_t>(compute_ms) * kMs);
  }
  if (!ledger_.violation().empty()) return absl::InternalError("stopped");
  has_finisher_ = true;
  GRADRAIL_RETURN_IF_ERROR(client->finish_steps());
  GRADRAIL_RETURN_IF_ERROR(client->barriers().wait_for_live("end", std::chrono::seconds(30)));
  return client->leave();
}

/// One step of the fragment with the lowest position, and at times of the next ones beside it, without a gap.
absl::Status World::exchange(Client& client, uint32_t worker, Random& pace, std::vector<int64_t>& positions) {
  const int64_t position = *std::min_element(positions.begin(), positions.end());
  std::vector<uint32_t> chosen;
  const auto most = 1 + pace.below(shape_.fragments);
  for (uint32_t i = 0; i < shape_.fragments && chosen.size() < most; ++i) {
    if (positions[i] == position) chosen.push_back(i);
  }
  const uint64_t rejoins = client.statistics().now().rejoins;
  if (shape_.weights) GRADRAIL_RETURN_IF_ERROR(client.set_weight(shape_.weight(worker, position)));
  const absl::Span<const float> parameters(client.parameters(0).data(), shape_.elements());
  const absl::Span<float> gradients(client.gradients(0).data(), shape_.elements());
  for (const uint32_t fragment : chosen) {
    ledger_.fill_gradient(worker, position, shape_.fragment(fragment), parameters, gradients);
    ledger_.on_push(worker, fragment);
    if (pace.below(2) == 0) client.ready(shape_.fragments == 1 ? pace.below(2) : fragment);
    client.exchange(fragment);
  }
  for (const uint32_t fragment : chosen) {
    GRADRAIL_RETURN_IF_ERROR(client.wait(fragment));
    check_restored();
    // A lost worker may be a member again before its own next step.
    if (lost_members_.empty()) lost_members_ = why_not_exact();
    // All exchanges under way are dropped.
    if (client.statistics().now().rejoins != rejoins) {
      begin_again(client, worker, positions);
      break;
    }
    const int64_t before = std::exchange(positions[fragment], client.position(fragment));
    ledger_.on_step(worker, fragment, before, positions[fragment], parameters);
    scheduler().trace(fmt::format("worker/{} fragment {} step {} -> {} version {}", worker, fragment, before,
                                  positions[fragment], client.global_step(fragment)));
  }
  return absl::OkStatus();
}

/// The worker has joined again.
void World::begin_again(Client& client, uint32_t worker, std::vector<int64_t>& positions) {
  has_return_ = true;
  check_restored();
  // The rests of the steps that are repeated are not those of their first time.
  if (ps::cut_elements(shape_.push) > 16) ledger_.stop_exact("a worker has joined again with other rests");
  positions = positions_of(client, shape_);
  ledger_.on_start(worker, positions, {client.parameters(0).data(), shape_.elements()});
  scheduler().trace(fmt::format("worker/{} returned to {}", worker, fmt::join(positions, " ")));
}

/// Ends the save under way, and begins another one. A checkpoint that cannot be saved does not end a run.
void World::save(Client& client, uint32_t worker, Saved& saving) {
  const auto files = client.checkpoints().finish();
  const bool is_later = saving.run != saved_.run || saving.version > saved_.version;
  if (files.ok() && !files->empty() && saving.version > 0 && is_later) {
    saved_ = saving;
    saved_.at_ns = scheduler().now();
  }
  saving = {.version = client.global_step(), .run = run_of(0).run};
  const absl::Status begun = client.checkpoints().begin();
  if (!begun.ok()) saving = {};
  scheduler().trace(fmt::format("worker/{} saves: {}; before: {}", worker, begun.ToString(),
                                files.ok() ? "ok" : files.status().ToString()));
}

/// The generation 0: this task does not run, or has no run.
ps::PublishedRun World::run_of(uint32_t task) const {
  ps::ControlPlane* const plane = control_.plane_of(task);
  if (plane == nullptr) return {};
  const MutexLock lock(plane->context.state.mutex);
  return plane->context.state.run;
}

/// Invariant 4 of the ledger. A backup follows its primary and restores nothing.
void World::check_restored() {
  if (shape_.backups || saved_.at_ns == 0 || Disk::instance().has_damage()) return;
  for (uint32_t task = 0; task < server_tasks(); ++task) {
    const ps::PublishedRun run = run_of(task);
    if (run.generation == 0 || tasks_[task].started_ns < saved_.at_ns) continue;
    // A worker was cut off while a new process of another one began a run without it and saved that one.
    const bool is_of_other_run = run.agreed->run() != 0 && run.agreed->run() != saved_.run;
    if (is_of_other_run || run.began_from.global_step.value_or(0) >= saved_.version) continue;
    ledger_.violate(fmt::format("{} has restored step {}, and a checkpoint of step {} was written", name_of_task(task),
                                run.began_from.global_step.value_or(0), saved_.version));
  }
}

/// Whether the run of a server began without a checkpoint.
bool World::began_from_a_copy(uint32_t task) const {
  const ps::PublishedRun run = run_of(task);
  return run.generation > 0 && !run.began_from.global_step.has_value();
}

/// A worker that a server has lost is missing in the steps from then on.
std::string World::why_not_exact() const {
  if (!lost_members_.empty()) return lost_members_;
  if (has_finisher_) return "a worker has finished, and repeats no step";
  // A step that was answered in part is in some buckets of the chief's copy (docs/design/exchange.md).
  constexpr const char* kCopy = "the servers began again from the chief's copy of the parameters";
  if (has_return_ && has_copy_) return kCopy;
  for (uint32_t task = 0; task < server_tasks(); ++task) {
    if (has_return_ && began_from_a_copy(task)) return kCopy;
    ps::ControlPlane* const plane = control_.plane_of(task);
    if (plane == nullptr) continue;
    const MutexLock lock(plane->context.state.mutex);
    for (const auto& known : plane->context.state.membership.known_members()) {
      if (known.departed.empty() || known.departed == ps::Membership::kLeft) continue;
      return fmt::format("{} has lost worker/{}: {}", name_of_task(task), known.worker, known.departed);
    }
  }
  return "";
}

bool World::is_over() const {
  if (!ledger_.violation().empty()) return true;
  const auto is_ended = [](const Task& task) { return task.is_done || (task.process == 0 && !task.returns); };
  const bool some_done = std::any_of(tasks_.begin(), tasks_.end(), [](const Task& task) { return task.is_done; });
  for (const Task& task : tasks_) {
    if (task.is_server) continue;
    // A worker that is started after the end of the run has no run to join.
    if (!is_ended(task) && !(some_done && (task.process == 0 || !task.has_begun))) return false;
  }
  return true;
}

RunResult World::run() {
  const std::string place = folder_of(getpid());
  remove_folder_of(getpid());  // a run that was killed may have had the same number
  std::filesystem::create_directories(place + "/" + folder_);
  std::filesystem::current_path(place);
  Disk::instance().begin(folder_, seed_);
  transport::loopback::use_network(&net_);
  seed_entropy(seed_);
  scheduler().seed(seed_);
  net_.add_process(0, UINT32_MAX);
  scheduler().trace(shape_.text());
  for (uint32_t i = 0; i < tasks_.size(); ++i) start_after(i, static_cast<int64_t>(random_.below(500)) * kMs);
  scheduler().spawn(0, [this] { inject(); });
  const Scheduler::End end = scheduler().run(
      [this] { return is_over() || (is_healed_ && scheduler().now() > faults_end_ns_ + kRecovery); }, kMaxSwitches);
  check_end(static_cast<int>(end));
  counts_[static_cast<size_t>(Fault::delay)] = net_.delayed();
  Disk& disk = Disk::instance();
  counts_[static_cast<size_t>(Fault::lost_write)] = disk.count(DiskFault::lost_write);
  counts_[static_cast<size_t>(Fault::torn_write)] = disk.count(DiskFault::torn_write);
  counts_[static_cast<size_t>(Fault::misdirected_write)] = disk.count(DiskFault::misdirected_write);
  counts_[static_cast<size_t>(Fault::unsynced)] = disk.count(DiskFault::unsynced);
  counts_[static_cast<size_t>(Fault::disk_error)] =
      disk.count(DiskFault::write_error) + disk.count(DiskFault::read_error);
  counts_[static_cast<size_t>(Fault::undone_write)] = disk.undone();
  const bool complete =
      std::all_of(tasks_.begin(), tasks_.end(), [](const Task& t) { return t.is_server || t.is_done; });
  return {.hash = scheduler().hash(),
          .faults = counts_,
          .events = scheduler().switches(),
          .steps = ledger_.steps(),
          .exact_steps = ledger_.exact_steps(),
          .virtual_seconds = static_cast<double>(scheduler().now() - Scheduler::kStart) * 1e-9,
          .is_complete = complete,
          .shape = shape_.text(),
          .violation = ledger_.violation()};
}

void World::check_end(int end) {
  if (!ledger_.violation().empty()) return;
  if (static_cast<Scheduler::End>(end) == Scheduler::End::deadlock)
    ledger_.violate("no thread can run, and no timer is set");
  if (static_cast<Scheduler::End>(end) == Scheduler::End::too_long) ledger_.violate("the run does not end");
  if (is_over()) return;
  for (const Task& task : tasks_) {
    if (task.is_server || task.is_done) continue;
    ledger_.violate(fmt::format("worker/{} has not finished {} s after the last fault (starts {}, last end: {})",
                                task.index, kRecovery / kSecond, task.starts, task.ended));
  }
}

}  // namespace gradrail::simulation
