#include "worker/tree/tree_parent.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/resource_limits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "ps/protocol/control.pb.h"
#include "ps/protocol/schema.h"
#include "ps/protocol/security.h"
#include "worker/client/run_failure.h"
#include "worker/client/session/control_link.h"

namespace gradrail::tree {
namespace {

/// A worker waits 30 s for the reply to its own join, which waits for this one.
constexpr auto kJoinTimeout = std::chrono::seconds(20);
constexpr auto kJoinLimit = std::chrono::seconds(60);
constexpr auto kLeaveLimit = std::chrono::seconds(20);
/// A call of the control plane to each ps task of the parent.
constexpr auto kSaveLimit = std::chrono::seconds(60);
/// Each event wakes the thread: this is the time after which a lost ps is noticed without one.
constexpr auto kRound = std::chrono::milliseconds(500);

/// The mode decides before the options of the other workers are compared.
absl::Status check_mode(const Mode& mode) {
  if (mode.kind == ModeKind::sync) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format(
      "--mode {}: a parameter server with --parent serves --mode sync; connect the workers to the root for other modes",
      mode_text(mode)));
}

}  // namespace

absl::Status wait_for_parent(const ClientOptions& options) {
  GRADRAIL_ASSIGN_OR_RETURN(const auto dialer,
                            worker::control_link_dialer(options.security, options.cluster.workers.size()));
  ps::proto::DescribeRequest request;
  request.set_protocol_version(ps::kProtocolVersion);
  request.set_task_index(options.task_index);
  request.set_encrypts_data(options.security.encrypt_data);
  const TimePoint deadline = Clock::now() + options.recovery.join_timeout;
  const auto stopped = [&options] { return options.hooks.stop != nullptr && options.hooks.stop->load(); };
  for (uint32_t i = 0; i < options.cluster.ps.size(); ++i) {
    GRADRAIL_RETURN_IF_ERROR(ps::check_exposure(options.security, options.cluster.ps[i]));
    worker::ControlLink link(
        i, options.cluster.ps[i], dialer, [](const std::string& text) { log_warning("{}", text); }, stopped, nullptr);
    GRADRAIL_RETURN_IF_ERROR(link.describe(request, deadline).status());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<TreeParent>> TreeParent::start(ClientOptions options) {
  std::shared_ptr<TreeParent> parent(new TreeParent(std::move(options)));
  GRADRAIL_ASSIGN_OR_RETURN(parent->thread_, start_thread("of a parent", [raw = parent.get()] { raw->run(); }));
  return parent;
}

TreeParent::~TreeParent() {
  stop_.store(true);
  tasks_.stop();
  wake();
  if (thread_.joinable()) thread_.join();
}

absl::Status TreeParent::run_in_thread(Duration limit, std::function<absl::Status()> task) {
  const absl::StatusOr<absl::Status> done = tasks_.run_and_wait(
      name(), limit, [this] { wake(); }, std::move(task));
  return done.ok() ? *done : done.status();
}

void TreeParent::wake() {
  const MutexLock lock(mutex_);
  changed_.notify_all();
  if (client_to_wake_ != nullptr) client_to_wake_->wake();
}

void TreeParent::run() {
  pthread_setname_np(pthread_self(), "gradrail-parent");
  while (true) {
    const Work work = wait_for_work();
    if (work == Work::task && !tasks_.run()) break;
    if (work == Work::task) continue;
    const absl::Status exchanged = work == Work::offer ? offer() : exchange();
    if (!exchanged.ok()) fail(exchanged);
  }
  forget_client();
}

TreeParent::Work TreeParent::wait_for_work() {
  MutexLock lock(mutex_);
  while (true) {
    if (tasks_.has_work()) return Work::task;
    const bool is_joined = client_ != nullptr && failure_.ok();
    if (is_joined && is_exchanging_) return Work::exchange;  // it waits in the client
    if (is_joined && unoffered_ == 0) return Work::offer;
    changed_.wait(lock);
  }
}

/// The client leaves the parent, unless it has failed.
void TreeParent::forget_client() {
  {
    const MutexLock lock(mutex_);
    client_to_wake_ = nullptr;
  }
  client_.reset();
  is_exchanging_ = false;
}

void TreeParent::fail(const absl::Status& cause) {
  absl::Status known = cause;
  // A node that was lost by silence joins again as another incarnation, with a pull: it starts again.
  if (worker::is_returnable(cause) || absl::IsCancelled(cause))
    known = absl::UnavailableError(std::string(message_of(cause)));
  const MutexLock lock(mutex_);
  if (failure_.ok()) failure_ = absl::Status(known.code(), fmt::format("{}: {}", name(), message_of(known)));
}

absl::Status TreeParent::failure() const {
  const MutexLock lock(mutex_);
  return failure_;
}

std::string TreeParent::name() const { return fmt::format("the parent at {}", fmt::join(options_.cluster.ps, ",")); }

bool TreeParent::saves_checkpoints() const {
  const MutexLock lock(mutex_);
  return saves_checkpoints_;
}

absl::StatusOr<ps::Parent::Joined> TreeParent::join(const Schema& schema, const ps::Training& training,
                                                    const ps::ShardMap& map) {
  GRADRAIL_RETURN_IF_ERROR(check_mode(training.mode));
  stop_.store(false);
  auto joined = std::make_shared<Joined>();  // shared: the task may still run when the limit has passed
  GRADRAIL_RETURN_IF_ERROR(run_in_thread(
      kJoinLimit, [this, schema, training, map, joined] { return join_in_thread(schema, training, map, *joined); }));
  return *std::move(joined);
}

absl::Status TreeParent::join_in_thread(const Schema& schema, const ps::Training& training, const ps::ShardMap& map,
                                        Joined& joined) {
  forget_client();
  {
    const MutexLock lock(mutex_);
    gradients_.clear();
    failure_ = absl::OkStatus();
  }
  layout_ = ps::layout_of(schema);
  steps_.assign(layout_.fragments.size(), 0);
  versions_.assign(layout_.fragments.size(), UINT64_MAX);
  ClientOptions options = options_;
  options.mode = training.mode;
  options.optimizer = training.optimizer;
  options.compression = {.push = training.push, .returns = training.returns};
  options.bucket_bytes = training.bucket_bytes;
  options.agreement = training.agreement;
  options.recovery.join_timeout = kJoinTimeout;
  options.recovery.rejoin_timeout = Duration::zero();  // the node starts again instead
  options.hooks.stop = &stop_;
  options.hooks.on_arrived = [this](uint64_t first, uint64_t count, uint64_t version) {
    on_arrived(first, count, version);
  };
  GRADRAIL_ASSIGN_OR_RETURN(client_, Client::join(std::move(options), schema));
  if (client_->is_initialised()) {
    const absl::Status started = client_->start();
    if (!started.ok()) {
      client_.reset();
      return started;
    }
    is_exchanging_ = true;
    joined = pulled();
  }
  const std::vector<MemorySpan> memory = client_->memory();
  const MutexLock lock(mutex_);
  client_to_wake_ = client_.get();
  saves_checkpoints_ = client_->checkpoints().is_enabled();
  unoffered_ = layout_.elements;
  map_ = map;
  upstream_ = {.gradients = reinterpret_cast<float*>(memory[1].data),
               .parameters = reinterpret_cast<float*>(memory[0].data),
               .is_started = is_exchanging_,
               .push =
                   [this](const NodeGradient& gradient) {
                     {
                       const MutexLock push_lock(mutex_);
                       gradients_.push_back(gradient);
                     }
                     wake();
                   },
               .offer =
                   [this](uint64_t count) {
                     {
                       const MutexLock offer_lock(mutex_);
                       unoffered_ -= std::min(unoffered_, count);
                     }
                     wake();
                   }};
  return absl::OkStatus();
}

/// The parameters of the parent, as a checkpoint from which the shards begin.
ps::Parent::Joined TreeParent::pulled() const {
  auto parameters = std::make_shared<ps::Checkpoint>();
  const auto* const values = reinterpret_cast<const float*>(client_->memory()[0].data);
  parameters->parameters.assign(values, values + layout_.elements);
  parameters->header.global_step = versions_[0];
  parameters->header.fragment_steps = versions_;
  return {.parameters = std::move(parameters),
          .run_base = static_cast<int64_t>(versions_[0]) - static_cast<int64_t>(client_->position())};
}

/// The shards have the initial values of their chief. The parent takes those of the first node.
absl::Status TreeParent::offer() {
  versions_.assign(versions_.size(), UINT64_MAX);
  GRADRAIL_RETURN_IF_ERROR(client_->start());
  // The shards count from 0.
  if (std::any_of(versions_.begin(), versions_.end(), [](uint64_t version) { return version != 0; }))
    return absl::UnavailableError("its run has begun without this node, which starts again");
  is_exchanging_ = true;
  const MutexLock lock(mutex_);
  for (NodeStore* const store : stores_) store->end_all();
  return absl::OkStatus();
}

absl::Status TreeParent::exchange() {
  push_gradients();
  GRADRAIL_RETURN_IF_ERROR(client_->parts().advance(kRound));
  for (uint32_t fragment = 0; fragment < steps_.size(); ++fragment) {
    if (!client_->parts().have_arrived(fragment)) continue;
    client_->exchange(fragment);  // all of its parts have left
    GRADRAIL_RETURN_IF_ERROR(client_->wait(fragment));
    steps_[fragment] = 0;
  }
  return absl::OkStatus();
}

void TreeParent::push_gradients() {
  std::deque<NodeGradient> gradients;
  {
    const MutexLock lock(mutex_);
    gradients.swap(gradients_);
  }
  for (const NodeGradient& gradient : gradients) {
    uint64_t& step = steps_[layout_.fragment_at(gradient.range.first)];
    // A worker that pushes without having all answers of the step before.
    if (step != 0 && step != gradient.step) {
      const MutexLock lock(mutex_);
      gradients_.push_back(gradient);
      continue;
    }
    step = gradient.step;
    client_->parts().ready(gradient.range.first, gradient.range.count, gradient.rate, gradient.weight);
  }
}

void TreeParent::on_arrived(uint64_t first, uint64_t count, uint64_t version) {
  uint64_t& lowest = versions_[layout_.fragment_at(first)];
  lowest = std::min(lowest, version);
  if (!is_exchanging_) return;  // offer() ends all parts together
  const MutexLock lock(mutex_);
  for (NodeStore* const store : stores_) store->on_arrived({first, count});
}

ps::StoreMaker TreeParent::store_maker(uint32_t shard) {
  return [this, shard](const OptimizerConfig& optimizer, size_t count,
                       const MemoryBinder& place) -> absl::StatusOr<std::unique_ptr<ps::ParameterStore>> {
    GRADRAIL_ASSIGN_OR_RETURN(SharedMemory memory, ps::allocate_parameters(count, place));
    const auto forget = [this](NodeStore* store) {
      const MutexLock lock(mutex_);
      std::erase(stores_, store);
    };
    const MutexLock lock(mutex_);
    GRADRAIL_CHECK(shard < map_.shard_count() && map_.shard(shard).count == count);
    auto store = std::make_unique<NodeStore>(optimizer, std::move(memory), map_.shard(shard), upstream_, forget);
    stores_.push_back(store.get());
    return store;
  };
}

void TreeParent::leave(const std::string& failed) {
  if (!failed.empty()) stop_.store(true);  // it may wait for initial values
  const absl::Status left = run_in_thread(kLeaveLimit, [this, failed] {
    if (client_ == nullptr) return absl::OkStatus();
    absl::Status ended;
    if (this->failure().ok()) ended = failed.empty() ? client_->leave() : client_->give_up(failed);
    forget_client();
    const MutexLock lock(mutex_);
    failure_ = absl::OkStatus();
    return ended;
  });
  if (!left.ok()) log_warning("{}: {}", name(), message_of(left));
}

absl::Status TreeParent::begin_checkpoint() {
  return run_in_thread(kSaveLimit, [this] {
    if (client_ == nullptr) return absl::UnavailableError("no connection to the parent");
    return client_->is_chief() ? client_->checkpoints().begin() : absl::OkStatus();  // the chief of the parent saves
  });
}

absl::StatusOr<bool> TreeParent::is_checkpoint_written() {
  auto is_written = std::make_shared<bool>(false);
  GRADRAIL_RETURN_IF_ERROR(run_in_thread(kSaveLimit, [this, is_written] {
    if (client_ == nullptr) return absl::UnavailableError("no connection to the parent");
    if (client_->checkpoints().is_under_way()) return absl::OkStatus();
    *is_written = true;
    return client_->checkpoints().finish().status();
  }));
  return *is_written;
}

}  // namespace gradrail::tree
