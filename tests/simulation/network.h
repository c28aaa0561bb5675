#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "tests/simulation/scheduler.h"
#include "tests/transport/loopback/link.h"
#include "tests/transport/loopback/network.h"

namespace gradrail::simulation {

/// A connection of the control plane. Each side sees its loss at a time of its own.
struct Connection {
  ProcessId client = 0, server = 0;
  bool client_lost = false, server_lost = false;
  std::string cause;
  int64_t client_arrival = 0, server_arrival = 0;  ///< of the last message there: a connection keeps the order
  std::function<void()> on_server_lost;            ///< of a heartbeat stream; runs in a fiber of the server
};

/// Each task has a host of its own, and the network is between them: it delays, holds back, cuts. Messages of a
/// direction that is cut wait until it works again, as TCP repeats them.
class Net final : public transport::loopback::Network {
 public:
  explicit Net(uint64_t seed) : random_(seed, 4) {}

  // Processes.
  void add_process(ProcessId process, uint32_t task);
  uint32_t task_of(ProcessId process) const { return tasks_[process]; }
  /// Ends the connections of a process, before Scheduler::kill(). `with_host`: no packet reports the end to a peer.
  void on_kill(ProcessId process, bool with_host);

  // transport::loopback::Network.
  uint64_t place() override;
  absl::Status connect(const std::shared_ptr<transport::loopback::Link>& link, TimePoint deadline) override;
  TimePoint arrival(const transport::loopback::End& from, const transport::loopback::End& to) override;
  bool passes(const transport::loopback::End& from, const transport::loopback::End& to) override;

  // Control plane.
  /// Calls `arrived` when a message gets there, unless one of the processes has ended.
  void send_to_client(Connection& connection, std::function<void()> arrived);
  void send_to_server(Connection& connection, std::function<void()> arrived);
  std::shared_ptr<Connection> connect(ProcessId client, ProcessId server);
  void lose(Connection& connection, bool client, bool server, const std::string& cause);
  int64_t latency();

  // Faults.
  void set_cut(uint32_t from, uint32_t to, bool cut);
  bool is_cut(uint32_t from, uint32_t to) const { return cuts_.contains({from, to}); }
  bool is_dark(uint32_t task) const { return task < dark_.size() && dark_[task]; }
  /// The host of a task has no power.
  void set_dark(uint32_t task, bool dark);
  void heal();
  /// Cuts one data connection, or one of the control plane. False: there is none.
  bool cut_link();
  bool cut_connection();
  /// Chance in 1000 that a message takes up to `longest_ns` longer.
  void set_delays(uint32_t per_mille, int64_t longest_ns);
  uint64_t delayed() const { return delayed_; }

 private:
  struct Held {
    ProcessId from = 0, to = 0;
    std::function<void()> arrived;
  };
  void send(ProcessId from, ProcessId to, int64_t& last_arrival, std::function<void()> arrived);
  void deliver(Held message);
  void watch_cut(uint32_t from, uint32_t to, uint64_t number);
  void lose_links(const std::function<bool(uint64_t, uint64_t)>& concerns, const std::string& cause, TimePoint arrives);

  Random random_;
  uint32_t delay_per_mille_ = 0;
  int64_t longest_delay_ = 0;
  uint64_t delayed_ = 0;
  uint64_t next_cut_ = 1;
  std::vector<uint32_t> tasks_;  ///< per process
  std::vector<bool> dark_;       ///< per task
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> cuts_;
  std::vector<Held> held_;
  std::vector<std::weak_ptr<Connection>> connections_;
  std::vector<std::weak_ptr<transport::loopback::Link>> links_;
};

}  // namespace gradrail::simulation
