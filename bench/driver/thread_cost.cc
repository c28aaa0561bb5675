#include "bench/driver/thread_cost.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "fmt/format.h"

namespace gradrail::bench {
namespace {

/// The number behind `name` in a status file of /proc; 0: there is none.
double status_value(const std::filesystem::path& file, std::string_view name) {
  std::ifstream lines(file);
  for (std::string word; lines >> word;) {
    double value = 0.0;
    if (word == name && lines >> value) return value;
  }
  return 0.0;
}

}  // namespace

std::optional<ThreadCost> thread_cost(pid_t process, std::string_view thread_name) {
  const std::filesystem::path folder = fmt::format("/proc/{}", process);
  ThreadCost cost;
  bool found = false;
  std::error_code ended;
  for (const auto& thread : std::filesystem::directory_iterator(folder / "task", ended)) {
    std::string name;
    std::getline(std::ifstream(thread.path() / "comm") >> std::ws, name);
    double nanoseconds = 0.0;
    // A thread that ends meanwhile has no file any more.
    if (name != thread_name || !(std::ifstream(thread.path() / "schedstat") >> nanoseconds)) continue;
    found = true;
    cost.cpu_us += nanoseconds * 1e-3;
    const std::filesystem::path status = thread.path() / "status";
    cost.switches +=
        status_value(status, "voluntary_ctxt_switches:") + status_value(status, "nonvoluntary_ctxt_switches:");
  }
  if (!found) return std::nullopt;
  cost.resident_mb = status_value(folder / "status", "VmRSS:") * 1024e-6;
  return cost;
}

}  // namespace gradrail::bench
