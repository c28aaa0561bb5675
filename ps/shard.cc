#include "ps/shard.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/shard_tasks.h"
#include "transport/negotiate.h"

namespace gradrail::ps {
namespace {

/// `address` for listening: transports inside one host choose their own names.
std::string listen_address(const transport::Transport& transport, const std::string& bind_host) {
  if (transport.same_host_only) return "";
  return bind_host.find(':') != std::string::npos ? fmt::format("[{}]:0", bind_host) : fmt::format("{}:0", bind_host);
}

}  // namespace

Shard::Shard(Options options) : options_(std::move(options)), wait_set_(options_.wait), recorder_(options_.marks) {}

absl::StatusOr<std::unique_ptr<Shard>> Shard::start(Options options) {
  std::unique_ptr<Shard> shard(new Shard(std::move(options)));
  std::vector<transport::Candidate> refused;
  for (const std::string& name : shard->options_.transports) {
    const absl::StatusOr<const transport::Transport*> found = transport::find_transport(name);
    if (!found.ok()) return found.status();
    absl::StatusOr<std::unique_ptr<transport::Context>> context = (*found)->open(shard->options_.open);
    absl::StatusOr<std::string> address = context.ok()
                                              ? (*context)->listen(listen_address(**found, shard->options_.bind_host))
                                              : absl::StatusOr<std::string>(context.status());
    if (!address.ok()) {
      refused.push_back({.name = name, .refused = std::string(message_of(address.status()))});
      shard->endpoints_.push_back({name, "", std::string(message_of(address.status()))});
      continue;
    }
    shard->endpoints_.push_back({name, *std::move(address), ""});
    shard->wait_set_.add(context->get());
    shard->contexts_.push_back(*std::move(context));
  }
  if (shard->contexts_.empty()) {
    // The host or the flags: another start would end in the same way.
    return absl::FailedPreconditionError(
        fmt::format("{}: no transport can be used: {}", shard->options_.name, transport::explain_none(refused)));
  }
  shard->thread_ = std::thread([raw = shard.get()] { raw->run(); });
  return shard;
}

Shard::~Shard() {
  {
    std::lock_guard lock(tasks_mutex_);
    stopping_ = true;
  }
  wait_set_.wake();
  if (thread_.joinable()) thread_.join();
  for (auto& [connection, peer] : peers_) {
    peer->pinned.clear();
    peer->device = {};
    contexts_[peer->context_index]->close(peer->connection);
  }
}

void Shard::run_tasks() {
  std::vector<std::function<void()>> tasks;
  {
    std::lock_guard lock(tasks_mutex_);
    tasks.swap(tasks_);
    tasks_waiting_.store(false, std::memory_order_relaxed);
  }
  for (const std::function<void()>& task : tasks) task();
}

Duration Shard::patience() const {
  // Something waits for room or for a mapping: look again soon. Nothing does: only tasks and arrivals wake us.
  return unsettled_ > 0 || replica_in_need_ ? Duration(std::chrono::milliseconds(1))
                                            : Duration(std::chrono::seconds(1));
}

void Shard::run() {
  pthread_setname_np(pthread_self(), "gradrail-shard");
  if (options_.on_thread_start) options_.on_thread_start();
  std::vector<transport::Completion> completions(64);
  while (true) {
    {
      std::lock_guard lock(tasks_mutex_);
      if (stopping_ && tasks_.empty()) return;
    }
    const size_t count = wait_set_.wait(absl::MakeSpan(completions), Clock::now() + patience());
    if (count > 0 && recorder_.is_on()) noticed_at_ = Clock::now();
    for (size_t i = 0; i < count; ++i) handle(completions[i]);
    if (tasks_waiting_.load(std::memory_order_acquire)) run_tasks();
    if (replica_ != nullptr) watch_replica();
    if (unsettled_ > 0 || !absent_.empty()) housekeeping();
  }
}

absl::Status Shard::set_up(Setup setup) {
  absl::StatusOr<absl::Status> done = on_owner([this, setup = std::move(setup)]() -> absl::Status {
    // Again when the first worker's set-up failed at another shard, or everybody begins again. Who is admitted still is
    // about to be dismissed.
    admitted_.clear();
    absent_.clear();
    drop_all_greeted();
    replica_.reset();
    replica_unsure_ = was_level_ = was_outdated_ = false;
    held_.clear();
    parameters_regions_.clear();
    gpu_regions_.clear();
    is_set_up_ = false;
    setup_ = setup;
    absl::StatusOr<std::unique_ptr<ParameterStore>> store =
        options_.make_store(setup_.optimizer, range().count, options_.place_memory);
    if (!store.ok()) return store.status();
    store_ = *std::move(store);
    for (const auto& context : contexts_) {
      absl::StatusOr<std::unique_ptr<transport::MemoryRegion>> region =
          transport::register_on(registered_, *context, store_->parameters(), transport::Access::local);
      if (!region.ok()) return region.status();
      parameters_regions_.push_back(*std::move(region));
    }
    register_gpu();
    uint64_t version = 0;
    if (setup_.restored != nullptr) {
      const Checkpoint& saved = *setup_.restored;
      version = saved.header.global_step;
      const auto part = [&](const std::vector<float>& whole) {
        return absl::MakeConstSpan(whole).subspan(range().first, range().count);
      };
      GRADRAIL_RETURN_IF_ERROR(store_->set(0, part(saved.parameters)));
      for (size_t i = 0; i < saved.state.size(); ++i) {
        GRADRAIL_RETURN_IF_ERROR(store_->set_state(static_cast<int>(i), 0, part(saved.state[i])));
      }
    }
    protocol_ = std::make_unique<ShardProtocol>(setup_.mode, bucket_count(), setup_.restored != nullptr, version);
    setup_.restored.reset();
    is_set_up_ = true;
    return absl::OkStatus();
  });
  return done.ok() ? *done : done.status();
}

absl::Status Shard::admit(WorkerIndex worker, uint64_t incarnation, const std::string& key) {
  return on_owner([this, worker, incarnation, key] {
           GRADRAIL_CHECK(is_set_up_);
           admitted_[worker] = {.incarnation = incarnation, .key = key};
           protocol_->add_worker(worker, incarnation);
           return true;
         })
      .status();
}

void Shard::forget(WorkerIndex worker, uint64_t incarnation) {
  std::erase_if(admitted_,
                [&](const auto& entry) { return entry.first == worker && entry.second.incarnation == incarnation; });
  std::erase_if(absent_,
                [&](const Absent& absent) { return absent.worker == worker && absent.incarnation == incarnation; });
  // All of them: besides the active one, others may stand by.
  std::vector<ShardPeer*> theirs;
  for (const auto& [connection, peer] : peers_) {
    if (peer->worker == worker && peer->incarnation == incarnation) theirs.push_back(peer.get());
  }
  for (ShardPeer* peer : theirs) drop(peer);
}

/// What they have belongs to the store, which goes.
void Shard::drop_all_greeted() {
  std::vector<ShardPeer*> greeted;
  for (const auto& [connection, peer] : peers_) {
    if (peer->phase != ShardPeer::Phase::greeting) greeted.push_back(peer.get());
  }
  for (ShardPeer* peer : greeted) drop(peer);
}

void Shard::cut_off(WorkerIndex worker, uint64_t incarnation) {
  on_owner([this, worker, incarnation] {
    forget(worker, incarnation);
    return true;
  }).IgnoreError();
}

void Shard::serve_no_more() {
  on_owner([this] {
    admitted_.clear();
    primary_key_.clear();
    drop_all_greeted();
    return true;
  }).IgnoreError();
}

void Shard::dismiss(WorkerIndex worker, uint64_t incarnation) {
  on_owner([this, worker, incarnation] {
    forget(worker, incarnation);
    stop_waiting([&](Actions& actions) { protocol_->remove_worker(worker, incarnation, actions); });
    return true;
  }).IgnoreError();
}

void Shard::excuse(WorkerIndex worker, uint64_t incarnation) {
  on_owner([this, worker, incarnation] {
    stop_waiting([&](Actions& actions) { protocol_->excuse_worker(worker, incarnation, actions); });
    return true;
  }).IgnoreError();
}

void Shard::forgo(const std::vector<WorkerIndex>& workers) {
  on_owner([this, workers] {
    for (const WorkerIndex worker : workers)
      stop_waiting([&](Actions& actions) { protocol_->forgo_worker(worker, actions); });
    return true;
  }).IgnoreError();
}

void Shard::stop_waiting(const std::function<void(Actions&)>& change) {
  if (!is_set_up_) return;
  actions_.clear();
  decided_at_ = Clock::now();
  change(actions_);
  run_actions();
}

absl::StatusOr<Shard::Stats> Shard::stats() {
  return on_owner([this] {
    Stats stats;
    std::map<std::string, Stats::Path> paths = past_paths_;
    for (const auto& [connection, peer] : peers_) add_path(*peer, paths);
    for (auto& [name, path] : paths) stats.paths.push_back(std::move(path));
    if (!is_set_up_) return stats;
    stats.updates = updates_;
    stats.dropped = dropped_;
    stats.initialised = protocol_->initialised();
    if (bucket_count() > 0) {
      stats.version = protocol_->version(0);
      stats.next_step = protocol_->next_step();
      stats.waiting_for = protocol_->waiting_for(0);
    }
    return stats;
  });
}

absl::StatusOr<MemorySpan> Shard::parameters_memory() {
  return on_owner([this] { return store_ == nullptr ? MemorySpan{} : store_->parameters(); });
}

absl::StatusOr<std::vector<Mark>> Shard::marks() {
  return on_owner([this] { return recorder_.marks(); });
}

absl::StatusOr<Checkpoint> Shard::snapshot(Checkpoint memory) {
  auto copy = std::make_shared<Checkpoint>(std::move(memory));  // shared: the task may outlive our patience
  const absl::StatusOr<absl::Status> taken = on_owner([this, copy] { return take_snapshot(*copy); });
  if (!taken.ok()) return taken.status();
  if (!taken->ok()) return *taken;
  return std::move(*copy);
}

absl::Status Shard::take_snapshot(Checkpoint& copy) {
  if (!is_set_up_ || !protocol_->initialised()) {
    return absl::FailedPreconditionError("checkpoint: the parameters are not initialised yet");
  }
  copy.parameters.assign(store_->parameters_at(0), store_->parameters_at(0) + range().count);
  copy.state.resize(static_cast<size_t>(state_vectors(setup_.optimizer.kind)));
  for (size_t i = 0; i < copy.state.size(); ++i) {
    copy.state[i].resize(range().count);
    GRADRAIL_RETURN_IF_ERROR(store_->copy_state(static_cast<int>(i), 0, absl::MakeSpan(copy.state[i])));
  }
  copy.header = {.optimizer = setup_.optimizer,
                 .range = range(),
                 .shard_index = setup_.shard_index,
                 .shard_count = setup_.map.shard_count(),
                 .bucket_bytes = static_cast<uint32_t>(setup_.map.bucket_elements() * sizeof(float))};
  for (uint32_t i = 0; i < bucket_count(); ++i) copy.header.bucket_versions.push_back(protocol_->version(i));
  return absl::OkStatus();
}

}  // namespace gradrail::ps
