#include "tests/worker/client/cluster.h"

#include <stdlib.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/protocol/push_format.h"
#include "worker/client/client_impl.h"

namespace gradrail::worker {
namespace {

/// The replication peer of a backup: in these tests a lost ps does not return.
constexpr const char* kUnreachable = "127.0.0.1:1";

}  // namespace

Watchdog::Watchdog(Duration limit)
    : thread_([this, limit] {
        const TimePoint deadline = Clock::now() + limit;
        MutexLock lock(mutex_);
        while (!done_ && changed_.wait_until(lock, deadline)) {
        }
        if (done_) return;
        const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
        std::fprintf(stderr, "stuck: %s.%s\n", test == nullptr ? "?" : test->test_suite_name(),
                     test == nullptr ? "?" : test->name());
        std::abort();
      }) {}

Watchdog::~Watchdog() {
  {
    const MutexLock lock(mutex_);
    done_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Cluster::Cluster(const ClusterShape& shape) : transports_(shape.transports) {
  if (shape.encrypted) security_ = {.secret = "secret of a test", .encrypt_data = true};
  for (uint32_t i = 0; i < shape.worker_count; ++i) spec_.workers.push_back(fmt::format("127.0.0.1:{}", i + 1));
  tasks_.resize(shape.backups ? 2 * shape.ps_count : shape.ps_count);
  const auto address = [&](uint32_t index) { return fmt::format("127.0.0.1:{}", tasks_[index]->server->port()); };
  for (uint32_t i = 0; i < shape.ps_count; ++i) {
    if (shape.backups) {
      start(shape, shape.ps_count + i, kUnreachable);
      backups_.push_back(address(shape.ps_count + i));
    }
    start(shape, i, shape.backups ? backups_.back() : "");
    spec_.ps.push_back(address(i));
  }
}

void Cluster::start(const ClusterShape& shape, uint32_t index, const std::string& replication_peer) {
  auto task = std::make_unique<Task>();
  absl::StatusOr<std::unique_ptr<ps::Server>> server = ps::Server::start({.task_index = index,
                                                                          .listen_address = "127.0.0.1:0",
                                                                          .advertised_host = "127.0.0.1",
                                                                          .shard_count = shape.shards_per_ps,
                                                                          .transports = shape.transports,
                                                                          .worker_names = spec_.workers,
                                                                          .replication_peer = replication_peer,
                                                                          .begins_as_backup = index >= shape.ps_count,
                                                                          .device = shape.device,
                                                                          .checkpoint_dir = shape.checkpoint_dir,
                                                                          .heartbeat_timeout = shape.heartbeat_timeout,
                                                                          .min_workers = shape.min_workers,
                                                                          .return_limit = shape.return_limit,
                                                                          .slot_bytes = shape.slot_bytes,
                                                                          .security = security_});
  GRADRAIL_CHECK(server.ok());
  task->server = *std::move(server);
  task->thread = std::thread([raw = task.get()] {
    raw->outcome = raw->server->wait_finished(raw->stop);
    raw->finished.store(true);
  });
  tasks_[index] = std::move(task);
}

Cluster::~Cluster() {
  for (uint32_t i = 0; i < tasks_.size(); ++i) stop(i);
}

void Cluster::stop(uint32_t index) {
  Task& task = *tasks_[index];
  task.stop.store(true);
  if (task.thread.joinable()) task.thread.join();
  task.server.reset();
}

absl::Status Cluster::outcome(uint32_t index) {
  Task& task = *tasks_[index];
  if (!eventually([&] { return task.finished.load(); })) return absl::DeadlineExceededError("the ps continues");
  return task.outcome;
}

ClientOptions Cluster::options(uint32_t task_index, ModeKind mode) const {
  ClientOptions options;
  options.cluster = spec_;
  options.recovery.backups = backups_;
  options.task_index = task_index;
  options.mode.kind = mode;
  options.optimizer = {.kind = OptimizerKind::sgd, .learning_rate = 1.0f};
  options.bucket_bytes = 4096;
  options.transport.order = {transports_[0]};
  options.security = security_;
  options.recovery.join_timeout = 20s;
  options.hooks.log = [](const std::string&) {};
  return options;
}

void set_push(ClientOptions& options, PushFormat push) {
  options.compression.push = push;
  options.bucket_bytes = std::max(options.bucket_bytes, static_cast<uint32_t>(ps::cut_elements(push) * sizeof(float)));
}

std::unique_ptr<Client> join(ClientOptions options, Schema schema, std::shared_ptr<ps::ControlDialer> dialer) {
  absl::StatusOr<std::unique_ptr<Client>> client =
      ClientImpl::join_over(std::move(dialer), std::move(options), std::move(schema));
  if (!client.ok()) {
    ADD_FAILURE() << client.status();
    return nullptr;
  }
  return *std::move(client);
}

void in_parallel(uint32_t worker_count, const std::function<void(uint32_t)>& body) {
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < worker_count; ++i) threads.emplace_back([&body, i] { body(i); });
  for (std::thread& thread : threads) thread.join();
}

Schema odd_schema() { return {{"W", {13, 7}}, {"b", {1}}, {"long", {1000}}, {"cube", {3, 5, 7}}, {"wide", {129, 33}}}; }

float gradient_of(uint32_t worker, uint64_t step, size_t element) {
  return static_cast<float>((element * 7 + worker * 13 + step * 3) % 11) - 5.0f;
}

float initial_of(size_t element) { return static_cast<float>(element % 97); }

std::vector<float> flatten(Client& client) {
  std::vector<float> all;
  for (size_t i = 0; i < client.schema().size(); ++i) {
    const absl::Span<float> tensor = client.parameters(i);
    all.insert(all.end(), tensor.begin(), tensor.end());
  }
  return all;
}

void fill_initial(Client& client) {
  size_t element = 0;
  for (size_t i = 0; i < client.schema().size(); ++i) {
    for (float& value : client.parameters(i)) value = initial_of(element++);
  }
}

void fill_gradient(Client& client, size_t tensor, uint32_t worker, uint64_t step) {
  size_t element = 0;
  for (size_t i = 0; i < tensor; ++i) element += client.gradients(i).size();
  for (float& value : client.gradients(tensor)) value = gradient_of(worker, step, element++);
}

void fill_gradients(Client& client, uint32_t worker, uint64_t step) {
  for (size_t i = 0; i < client.schema().size(); ++i) fill_gradient(client, i, worker, step);
}

void scale_gradients(Client& client, float factor) {
  for (size_t tensor = 0; tensor < client.schema().size(); ++tensor) {
    for (float& value : client.gradients(tensor)) value *= factor;
  }
}

bool eventually(const std::function<bool()>& done, Duration limit) {
  const TimePoint deadline = Clock::now() + limit;
  while (!done()) {
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(2ms);
  }
  return true;
}

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "gradrail-client-XXXXXX").string();
  GRADRAIL_CHECK(mkdtemp(pattern.data()) != nullptr);
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() { std::filesystem::remove_all(path_); }

}  // namespace gradrail::worker
