// Many members at parameter servers: the time of their joins, and what their heartbeats cost the servers.
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "CLI/CLI.hpp"
#include "base/clock.h"
#include "base/file_descriptor.h"
#include "base/log.h"
#include "base/status.h"
#include "bench/driver/children.h"
#include "bench/members/stub_members.h"
#include "fmt/format.h"
#include "gradrail/cluster.h"
#include "ps/server.h"

namespace gradrail::bench {
namespace {

struct MembersFlags {
  uint32_t workers = 256;
  uint32_t servers = 2;
  std::vector<std::string> ps_hosts;
  uint32_t at_once = 64;
  double seconds = 0.0;
};

struct ServerProcess {
  pid_t process = 0;
  std::string address;
};

/// Use of a process since its start.
struct ProcessCost {
  double cpu_s = 0.0;
  uint64_t threads = 0;
  uint64_t files = 0;
  double resident_mb = 0.0;
};

double seconds_between(TimePoint begin, TimePoint end) { return std::chrono::duration<double>(end - begin).count(); }

ProcessCost cost_of(pid_t process) {
  ProcessCost cost;
  clockid_t clock{};
  timespec used{};
  if (clock_getcpuclockid(process, &clock) == 0 && clock_gettime(clock, &used) == 0)
    cost.cpu_s = static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
  const std::filesystem::path folder = fmt::format("/proc/{}", process);
  std::error_code ended;
  for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator(folder / "task", ended)) ++cost.threads;
  for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator(folder / "fd", ended)) ++cost.files;
  std::ifstream status(folder / "status");
  for (std::string word; status >> word;) {
    if (word == "VmRSS:" && status >> cost.resident_mb) cost.resident_mb *= 1024e-6;
  }
  return cost;
}

/// The process of a server. It ends when its parent ends.
[[noreturn]] void serve(uint32_t task, uint32_t workers, int port) {
  std::vector<std::string> names;
  for (uint32_t i = 0; i < workers; ++i) names.push_back(fmt::format("stub:{}", i));
  const auto server = ps::Server::start({.task_index = task,
                                         .listen_address = "127.0.0.1:0",
                                         .advertised_host = "127.0.0.1",
                                         .transports = {"tcp"},
                                         .worker_names = names});
  if (!server.ok()) {
    fmt::print(stderr, "members: ps/{}: {}\n", task, message_of(server.status()));
    _exit(1);
  }
  write_all(port, fmt::format("{}\n", (*server)->port()));
  const std::atomic<bool> never = false;
  (*server)->wait_finished(never).IgnoreError();
  _exit(0);
}

absl::StatusOr<ServerProcess> start_server(uint32_t task, uint32_t workers) {
  GRADRAIL_ASSIGN_OR_RETURN(Pipe port, open_pipe());
  const pid_t process = fork_child();
  if (process < 0) return absl::ResourceExhaustedError("no process for a server");
  if (process == 0) serve(task, workers, port.writer.get());
  port.writer.reset();
  std::optional<std::string> text;
  std::string number;
  while ((text = read_up_to(port.reader.get(), 1)).has_value() && !text->empty() && *text != "\n") number += *text;
  if (number.empty()) return absl::UnavailableError(fmt::format("ps/{} did not start", task));
  return ServerProcess{.process = process, .address = "127.0.0.1:" + number};
}

std::vector<ProcessCost> costs_of(const std::vector<ServerProcess>& servers) {
  std::vector<ProcessCost> costs;
  for (const ServerProcess& server : servers) costs.push_back(cost_of(server.process));
  return costs;
}

void print_costs(const std::vector<ProcessCost>& before, const std::vector<ProcessCost>& after, double seconds,
                 uint64_t pings) {
  double all_cpu_s = 0.0;
  for (size_t i = 0; i < after.size(); ++i) {
    const double cpu_s = after[i].cpu_s - before[i].cpu_s;
    all_cpu_s += cpu_s;
    fmt::print("ps/{}: {:.2f} % of a core, {} threads, {:.0f} MB, {} open files\n", i, 100.0 * cpu_s / seconds,
               after[i].threads, after[i].resident_mb, after[i].files);
  }
  if (after.empty()) return;
  fmt::print("all servers: {:.2f} % of a core, {:.1f} us for each heartbeat\n", 100.0 * all_cpu_s / seconds,
             pings > 0 ? 1e6 * all_cpu_s / static_cast<double>(pings) : 0.0);
}

absl::Status run_members(const MembersFlags& flags) {
  constexpr Duration kJoinLimit = std::chrono::minutes(10);
  constexpr Duration kShortestWindow = std::chrono::seconds(5);
  constexpr uint64_t kOwnFiles = 256;
  const uint64_t servers = flags.ps_hosts.empty() ? flags.servers : flags.ps_hosts.size();
  GRADRAIL_RETURN_IF_ERROR(allow_open_files(kOwnFiles + flags.workers * servers));
  std::vector<ServerProcess> processes;
  StubMembers::Options options = {.servers = flags.ps_hosts, .count = flags.workers, .at_once = flags.at_once};
  for (uint32_t i = 0; flags.ps_hosts.empty() && i < flags.servers; ++i) {
    GRADRAIL_ASSIGN_OR_RETURN(processes.emplace_back(), start_server(i, flags.workers));
    options.servers.push_back(processes.back().address);
  }
  const std::vector<ProcessCost> at_start = costs_of(processes);
  const TimePoint begin = Clock::now();
  StubMembers members(options);
  GRADRAIL_RETURN_IF_ERROR(members.join(begin + kJoinLimit));
  const double join_s = seconds_between(begin, Clock::now());
  double join_cpu_s = 0.0;
  for (const ProcessCost& cost : costs_of(processes)) join_cpu_s += cost.cpu_s;
  for (const ProcessCost& cost : at_start) join_cpu_s -= cost.cpu_s;
  fmt::print("{} members joined {} servers in {:.1f} s; the servers computed for {:.1f} s\n", flags.workers, servers,
             join_s, join_cpu_s);
  fflush(stdout);
  // Members that joined early have short intervals first.
  std::this_thread::sleep_for(members.interval() + std::chrono::seconds(1));
  const Duration window =
      flags.seconds > 0 ? from_seconds(flags.seconds) : std::max(kShortestWindow, 2 * members.interval());
  const std::vector<ProcessCost> before = costs_of(processes);
  const uint64_t pings_before = members.answered_pings();
  const TimePoint from = Clock::now();
  std::this_thread::sleep_for(window);
  const double seconds = seconds_between(from, Clock::now());
  const uint64_t pings = members.answered_pings() - pings_before;
  const std::vector<ProcessCost> after = costs_of(processes);
  fmt::print("{} heartbeats in {:.1f} s, interval {:.2f} s, {} lost\n", pings, seconds,
             std::chrono::duration<double>(members.interval()).count(), members.lost_heartbeats());
  print_costs(before, after, seconds, pings);
  const uint32_t lost = members.lost_heartbeats();
  end_children();  // precedes the members: the servers would report each of them as lost
  return lost > 0 ? absl::UnavailableError(fmt::format("{} heartbeats were lost", lost)) : absl::OkStatus();
}

}  // namespace
}  // namespace gradrail::bench

int main(int argc, char** argv) {
  gradrail::bench::MembersFlags flags;
  CLI::App app("What many members cost parameter servers: joins and heartbeats", "members");
  app.add_option("--workers", flags.workers, "members")
      ->check(CLI::Range(1u, gradrail::kMaxWorkers))
      ->capture_default_str();
  app.add_option("--ps", flags.servers, "servers to start on this host")
      ->check(CLI::Range(1u, 16u))
      ->capture_default_str();
  app.add_option("--ps_hosts", flags.ps_hosts, "servers that run already, HOST:PORT,…")->delimiter(',');
  app.add_option("--at_once", flags.at_once, "joins at the same time")
      ->check(CLI::Range(1u, 4096u))
      ->capture_default_str();
  app.add_option("--seconds", flags.seconds, "time of the measurement; 0: two intervals, at least 5 s");
  CLI11_PARSE(app, argc, argv);
  gradrail::start_log("bench");
  gradrail::bench::end_children_on_signals();
  const absl::Status done = gradrail::bench::run_members(flags);
  gradrail::bench::end_children();
  if (done.ok()) return 0;
  fmt::print(stderr, "members: {}\n", gradrail::message_of(done));
  return 1;
}
