#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/random.h"
#include "ps/control/control_context.h"
#include "tests/simulation/control_plane.h"
#include "tests/simulation/ledger.h"
#include "tests/simulation/network.h"

namespace gradrail {
class Client;
}

namespace gradrail::simulation {

enum class Fault : uint8_t {
  delay,
  link_cut,
  connection_cut,
  partition,
  one_way_partition,
  isolation,
  worker_crash,
  server_crash,
  power_loss,
  pause,
  clock_jump,
  disk_full,
  bit_rot,
  lost_write,
  torn_write,
  misdirected_write,
  unsynced,
  disk_error,
  undone_write,
};
constexpr size_t kFaults = 19;
const char* name_of(Fault fault);

struct RunResult {
  uint64_t hash = 0;
  std::array<uint64_t, kFaults> faults = {};
  uint64_t events = 0;       ///< switches between threads
  uint64_t steps = 0;        ///< acknowledged
  uint64_t exact_steps = 0;  ///< of these, compared with an undisturbed run bit for bit
  double virtual_seconds = 0;
  bool is_complete = false;  ///< each worker has finished
  std::string shape;
  std::string violation;  ///< "": none
};

/// Properties of each run that a seed would draw rarely.
struct Stress {
  bool quorum = false;     ///< the mode
  bool few_slots = false;  ///< 4 to 11 buckets share the places for gradients
};

/// One simulated run: servers and workers of a shape, each a process on a host of its own. A supervisor starts again
/// what has crashed. A source of faults disturbs the run.
class World {
 public:
  World(uint64_t seed, const Stress& stress);
  RunResult run();
  /// Removes the files of the run in a process that has ended.
  static void remove_folder_of(int pid);

 private:
  /// A task of the cluster description, and its present process.
  struct Task {
    bool is_server = false;
    uint32_t index = 0;
    ProcessId process = 0;  ///< 0: none runs
    int starts = 0;
    int64_t started_ns = 0;
    int64_t ended_ns = 0;
    bool is_done = false;    ///< it has ended as it should
    bool returns = false;    ///< a start is planned
    bool has_begun = false;  ///< a worker: this process has joined
    std::string ended;       ///< how its last process has ended
  };

  struct Saved {
    uint64_t version = 0;  ///< 0: none
    uint64_t run = 0;      ///< JoinReply.run
    int64_t at_ns = 0;
  };

  // Tasks (world.cc).
  void start(uint32_t task);
  void start_after(uint32_t task, int64_t delay_ns);
  void run_server(uint32_t task);
  void run_worker(uint32_t task);
  absl::Status train(uint32_t task);
  absl::Status exchange(Client& client, uint32_t worker, Random& pace, std::vector<int64_t>& positions);
  void begin_again(Client& client, uint32_t worker, std::vector<int64_t>& positions);
  void end_process(uint32_t task, const absl::Status& status);
  std::string name_of_task(uint32_t task) const;
  uint32_t server_tasks() const { return shape_.servers * (shape_.backups ? 2 : 1); }
  uint32_t worker_task(uint32_t worker) const { return server_tasks() + worker; }
  bool is_over() const;
  ps::PublishedRun run_of(uint32_t task) const;
  bool began_from_a_copy(uint32_t task) const;
  std::string why_not_exact() const;
  void check_end(int end);
  void save(Client& client, uint32_t worker, Saved& saving);
  void check_restored();

  // Faults (faults.cc).
  void inject();
  void inject_one();
  void restart_finishers();
  bool try_fault(Fault fault);
  bool cut_between(bool both_ways, bool isolate);
  bool crash(uint32_t task, bool power);
  void heal();
  void begin_disk_faults();
  void end_disk_faults();

  const uint64_t seed_;
  Random random_;
  Shape shape_;
  Net net_;
  ControlPlanes control_;
  Ledger ledger_;
  std::vector<Task> tasks_;
  std::string folder_;
  ProcessId next_process_ = 1;
  uint32_t faults_left_ = 0;
  int64_t fault_gap_ns_ = 0;
  int64_t faults_end_ns_ = INT64_MAX;
  bool is_healed_ = false;
  bool may_lose_workers_ = false;  ///< else all silences are shorter than the heartbeat timeout
  bool has_disk_faults_ = false;
  Saved saved_;                ///< the last checkpoint that was reported as written
  bool has_copy_ = false;      ///< a server that was started again and crashed had begun without a checkpoint
  bool has_return_ = false;    ///< a worker has joined again after the loss of a server
  bool has_finisher_ = false;  ///< a worker has finished its steps
  std::string lost_members_;   ///< a server has declared a worker lost
  std::array<uint64_t, kFaults> counts_ = {};
};

}  // namespace gradrail::simulation
