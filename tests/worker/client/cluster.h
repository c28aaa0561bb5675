#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "gradrail/client.h"
#include "ps/server.h"

namespace gradrail::worker {

using namespace std::chrono_literals;

/// Generous: a loaded machine is slow, a hang lasts for ever.
inline constexpr Duration kTimeout = 120s;

/// Stops the process when a test hangs in a call that cannot be interrupted, and prints the name of the test.
class Watchdog {
 public:
  explicit Watchdog(Duration limit = kTimeout);
  ~Watchdog();

 private:
  Mutex mutex_;
  ConditionVariable changed_;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

struct ClusterShape {
  uint32_t ps_count = 1;
  uint32_t shards_per_ps = 1;
  uint32_t worker_count = 2;
  std::vector<std::string> transports = {"shm", "tcp"};  ///< that the ps offer
  std::string checkpoint_dir = {};
  Duration heartbeat_timeout = 10s;
  uint32_t min_workers = 1;
  Duration return_limit = 30s;
  std::string device = "host";  ///< of the ps
  bool encrypted = false;       ///< data connections
  uint64_t slot_bytes = 0;      ///< ps::ServerOptions::slot_bytes
  bool backups = false;         ///< each ps task i has one, which is task ps_count + i here
};

/// ps tasks in this process on ports of the kernel's choice, each with the thread that a real one has.
class Cluster {
 public:
  explicit Cluster(const ClusterShape& shape);
  ~Cluster();

  const ClusterSpec& spec() const { return spec_; }
  ps::Server& server(uint32_t index) { return *tasks_[index]->server; }
  void stop(uint32_t index);
  /// Waits for wait_finished() of this ps, and returns its status. DEADLINE_EXCEEDED.
  absl::Status outcome(uint32_t index);

  /// sgd with rate 1 over the first transport.
  ClientOptions options(uint32_t task_index, ModeKind mode = ModeKind::async) const;

 private:
  struct Task {
    std::unique_ptr<ps::Server> server;
    std::atomic<bool> stop = false;
    std::atomic<bool> finished = false;
    absl::Status outcome;  ///< valid once finished
    std::thread thread;
  };
  void start(const ClusterShape& shape, uint32_t index, const std::string& replication_peer);

  ClusterSpec spec_;
  std::vector<std::string> backups_;
  std::vector<std::string> transports_;
  Security security_;
  std::vector<std::unique_ptr<Task>> tasks_;
};

/// Selects a format. Buckets below the smallest ones of the format become larger.
void set_push(ClientOptions& options, PushFormat push);

/// Joins, over gRPC without a dialer; a failure ends the test with its words.
std::unique_ptr<Client> join(ClientOptions options, Schema schema, std::shared_ptr<ps::ControlDialer> dialer = nullptr);

/// Runs `body(task_index)` in one thread per worker and waits for all.
void in_parallel(uint32_t worker_count, const std::function<void(uint32_t)>& body);

/// A model with tensors that cross the borders of buckets and shards at odd places: 5454 elements.
Schema odd_schema();

/// Small integers that differ by worker, step and element: sums of them are exact in fp32.
float gradient_of(uint32_t worker, uint64_t step, size_t element);
float initial_of(size_t element);

/// All tensors of a client, flattened.
std::vector<float> flatten(Client& client);
void fill_initial(Client& client);
void fill_gradient(Client& client, size_t tensor, uint32_t worker, uint64_t step);
void fill_gradients(Client& client, uint32_t worker, uint64_t step);
/// For gradients that bf16 rounds.
void scale_gradients(Client& client, float factor);

/// True when `done` became so within `limit`.
bool eventually(const std::function<bool()>& done, Duration limit = 20s);

/// A folder that goes with the test.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace gradrail::worker
