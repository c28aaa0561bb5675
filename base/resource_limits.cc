#include "base/resource_limits.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <system_error>
#include <utility>

#include "base/parse_number.h"
#include "base/read_file.h"
#include "fmt/format.h"

namespace gradrail {
namespace {

constexpr const char* kMemoryRemedy = "raise it by docker run --memory, MemoryMax= of a systemd unit, or srun --mem";
constexpr const char* kTasksRemedy = "raise it by docker run --pids-limit, or TasksMax= of a systemd unit";
constexpr const char* kUserTasksRemedy = "raise it by `ulimit -u`, or nproc in /etc/security/limits.conf";

/// Returns the words of the line that begins with `name`; empty: there is none.
std::vector<std::string> words_after(const std::string& text, std::string_view name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name)) continue;
    std::istringstream rest(line.substr(name.size()));
    std::vector<std::string> words;
    for (std::string word; rest >> word;) words.push_back(word);
    return words;
  }
  return {};
}

/// nullopt: no number, such as "max" and "unlimited".
std::optional<uint64_t> number_after(const std::string& text, std::string_view name) {
  const std::vector<std::string> words = words_after(text, name);
  return words.empty() ? std::nullopt : parse_number<uint64_t>(words[0]);
}

void keep_least(std::optional<Rest>& least, Rest rest) {
  if (!least || rest.amount < least->amount) least = std::move(rest);
}

/// A folder and those above it. `path` begins with '/'.
void add_upwards(const std::string& mount, std::string path, std::vector<std::string>& folders) {
  // Deeper than any manager nests them. A hostile file can name a path of any length.
  constexpr int kDeepest = 32;
  for (int depth = 0; depth < kDeepest && path.size() > 1; ++depth) {
    folders.push_back(mount + path);
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
  folders.push_back(mount);
}

/// File names of both hierarchies, which differ.
struct MemoryFiles {
  const char* limit;
  const char* usage;
  const char* inactive;  ///< line of memory.stat: cache that the kernel frees at need, as the next one
  const char* active;
};
constexpr MemoryFiles kMemoryFiles[] = {
    {"memory.max", "memory.current", "inactive_file ", "active_file "},
    {"memory.high", "memory.current", "inactive_file ", "active_file "},
    {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ", "total_active_file "}};

void add_memory_of(const std::string& folder, const SystemFiles& files, std::optional<Rest>& least) {
  // The first hierarchy writes "no limit" as the largest multiple of a page.
  constexpr uint64_t kNoLimit = uint64_t{1} << 62;
  for (const MemoryFiles& names : kMemoryFiles) {
    const std::optional<uint64_t> limit = number_after(files(fmt::format("{}/{}", folder, names.limit)), "");
    if (!limit || *limit >= kNoLimit) continue;
    const std::string stat = files(folder + "/memory.stat");
    const uint64_t cache =
        number_after(stat, names.inactive).value_or(0) + number_after(stat, names.active).value_or(0);
    const uint64_t usage = number_after(files(fmt::format("{}/{}", folder, names.usage)), "").value_or(0);
    const uint64_t used = usage - std::min(usage, cache);
    keep_least(least, {.amount = *limit - std::min(*limit, used),
                       .text = fmt::format("{} of {} is {} bytes, and {} are in use; {}", names.limit, folder, *limit,
                                           used, kMemoryRemedy)});
  }
}

/// Threads of all processes of this user, which `ulimit -u` counts.
uint64_t tasks_of_user() {
  uint64_t count = 0;
  const std::string user = std::to_string(getuid());
  for (const std::string& name : names_in("/proc")) {
    if (!parse_number<uint64_t>(name)) continue;
    const std::string status = read_system_file(fmt::format("/proc/{}/status", name));
    const std::vector<std::string> users = words_after(status, "Uid:");
    if (!users.empty() && users[0] == user) count += number_after(status, "Threads:").value_or(1);
  }
  return count;
}

/// Describes the open files by getrlimit(): no file can be read without a free descriptor.
std::string open_files_text() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return "raise `ulimit -n`";
  return fmt::format(
      "this process may open {} files; raise it by `ulimit -n`, LimitNOFILE= of a systemd unit, or docker run --ulimit "
      "nofile=",
      limit.rlim_cur);
}

}  // namespace

std::string read_system_file(const std::string& path) {
  constexpr size_t kMostBytes = 256 << 10;
  return read_file(path, kMostBytes).value_or("");
}

std::vector<std::string> cgroup_folders(const std::string& controller, const SystemFiles& files) {
  std::vector<std::string> folders;
  std::istringstream lines(files("/proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    // "0::/path" is the unified hierarchy; "5:memory:/path" is one of the first kind. A path may have colons.
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string names = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    // Controllers can share a mount, "cpu,cpuacct". The system then has a link for each single name.
    if (fmt::format(",{},", names).find(fmt::format(",{},", controller)) != std::string::npos)
      add_upwards("/sys/fs/cgroup/" + controller, path, folders);
    if (!names.empty()) continue;
    // systemd mounts the second hierarchy at "unified" on hosts that run both.
    add_upwards("/sys/fs/cgroup", path, folders);
    add_upwards("/sys/fs/cgroup/unified", path, folders);
  }
  return folders;
}

std::optional<Rest> available_memory(uint64_t processes, const SystemFiles& files) {
  constexpr uint64_t kBytesPerKib = 1024;
  std::optional<Rest> least;
  // "MemAvailable:   20512340 kB"
  if (const std::optional<uint64_t> kib = number_after(files("/proc/meminfo"), "MemAvailable:")) {
    least = Rest{.amount = *kib * kBytesPerKib, .text = "MemAvailable"};
  }
  for (const std::string& folder : cgroup_folders("memory", files)) add_memory_of(folder, files, least);
  if (const std::optional<uint64_t> limit = number_after(files("/proc/self/limits"), "Max address space")) {
    const uint64_t used = number_after(files("/proc/self/status"), "VmSize:").value_or(0) * kBytesPerKib;
    const uint64_t rest = *limit - std::min(*limit, used);
    keep_least(least, {.amount = rest > UINT64_MAX / std::max<uint64_t>(processes, 1) ? UINT64_MAX : rest * processes,
                       .text = fmt::format("the address space of a process is limited to {} bytes, and {} are in use; "
                                           "raise it by `ulimit -v`",
                                           *limit, used)});
  }
  return least;
}

absl::Status check_available_memory(std::string_view who, double bytes, std::string_view remedy, uint64_t processes,
                                    const SystemFiles& files) {
  const std::optional<Rest> rest = available_memory(processes, files);
  // Floating point, because the product of sizes and numbers can exceed 64 bits.
  if (!rest || bytes <= static_cast<double>(rest->amount)) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      fmt::format("{} at least {:.0f} bytes of memory on this host, and {} are available ({}); {}", who, bytes,
                  rest->amount, rest->text, remedy));
}

std::optional<Rest> available_tasks(const SystemFiles& files) {
  std::optional<Rest> least;
  for (const std::string& folder : cgroup_folders("pids", files)) {
    const std::optional<uint64_t> limit = number_after(files(folder + "/pids.max"), "");
    if (!limit) continue;
    const uint64_t used = number_after(files(folder + "/pids.current"), "").value_or(0);
    keep_least(least, {.amount = *limit - std::min(*limit, used),
                       .text = fmt::format("pids.max of {} is {} processes and threads, and {} run; {}", folder, *limit,
                                           used, kTasksRemedy)});
  }
  rlimit limit{};
  // The limit does not apply to root.
  if (getuid() == 0 || getrlimit(RLIMIT_NPROC, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return least;
  const uint64_t used = tasks_of_user();
  keep_least(least, {.amount = limit.rlim_cur - std::min<uint64_t>(limit.rlim_cur, used),
                     .text = fmt::format("this user may have {} processes and threads, and {} run; {}", limit.rlim_cur,
                                         used, kUserTasksRemedy)});
  return least;
}

uint64_t threads_with_grpc() {
  constexpr uint64_t kOthers = 11, kMostOfPool = 32;
  return kOthers + std::clamp<uint64_t>(static_cast<uint64_t>(sysconf(_SC_NPROCESSORS_CONF)), 2, kMostOfPool);
}

absl::Status check_available_tasks(std::string_view who, uint64_t needed, const SystemFiles& files) {
  const std::optional<Rest> rest = available_tasks(files);
  if (!rest || rest->amount >= needed) return absl::OkStatus();
  return absl::ResourceExhaustedError(fmt::format("{} {} processes and threads, and {} more can be started: {}", who,
                                                  needed, rest->amount, rest->text));
}

std::string limit_text(int error, const SystemFiles& files) {
  // The stack of a thread needs address space.
  constexpr uint64_t kThreadBytes = uint64_t{64} << 20;
  switch (error) {
    case EMFILE:
      return open_files_text();
    case ENFILE:
      return "this host has no more open files: raise sysctl fs.file-max";
    case EAGAIN:
      if (const std::optional<Rest> rest = available_memory(1, files); rest && rest->amount < kThreadBytes)
        return rest->text;
      if (const std::optional<Rest> rest = available_tasks(files)) return rest->text;
      return "raise sysctl kernel.threads-max and kernel.pid_max";
    case ENOMEM:
    case ENOBUFS:
      if (const std::optional<Rest> rest = available_memory(1, files))
        return fmt::format("{} bytes of memory are available: {}", rest->amount, rest->text);
      return "free memory of this host";
    case EFBIG:
      return "raise `ulimit -f`, or LimitFSIZE= of a systemd unit";
    case ENOSPC:
      return "no space is left: free memory, or space of the file system";
    default:
      return "";
  }
}

absl::Status kernel_refusal(std::string_view call, int error, const SystemFiles& files) {
  const std::string limit = limit_text(error, files);
  if (limit.empty()) return absl::ErrnoToStatus(error, std::string(call));
  return absl::ResourceExhaustedError(fmt::format("{}: {} ({})", call, std::strerror(error), limit));
}

absl::StatusOr<std::thread> start_thread(std::string_view name, std::function<void()> run) {
  try {  // std::thread has no other way to report it
    return std::thread(std::move(run));
  } catch (const std::system_error& error) {
    return kernel_refusal(fmt::format("start the thread {}", name), error.code().value());
  }
}

}  // namespace gradrail
