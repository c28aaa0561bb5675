#include "tools/monitor/flight_dump.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <iterator>

#include "base/file_descriptor.h"
#include "fmt/format.h"

namespace gradrail::tools {
namespace {

const char* name_of(Mark::Kind kind) {
  switch (kind) {
    case Mark::Kind::begun:
      return "begun: the exchange as a whole";
    case Mark::Kind::pushed:
      return "pushed: handed over by the trainer";
    case Mark::Kind::copied:
      return "copied: from the GPU to the host";
    case Mark::Kind::posted:
      return "posted: taken by the transport";
    case Mark::Kind::answered:
      return "answered: notice of fresh parameters seen";
    case Mark::Kind::done:
      return "done: the exchange as a whole";
    case Mark::Kind::noticed:
      return "noticed: came out of the transport";
    case Mark::Kind::taken:
      return "taken: its turn";
    case Mark::Kind::applying:
      return "applying: all it waits for are there";
    case Mark::Kind::applied:
      return "applied";
  }
  return "?";
}

// The caller passes the name of the system call: errno is still that of the call.
absl::Status failed(const std::string& path, const char* call) {
  return absl::FailedPreconditionError(fmt::format("{}: {}: {}", path, call, std::strerror(errno)));
}

std::string utc_text() {
  const std::time_t now = std::time(nullptr);
  // gmtime_r(): the tasks of one job can run in several time zones.
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace

std::string flight_text(std::vector<Mark> marks, const std::string& task, const std::string& why, TimePoint now) {
  // Stable: marks of one moment stay in the order in which they were recorded.
  std::stable_sort(marks.begin(), marks.end(), [](const Mark& a, const Mark& b) { return a.at_ns < b.at_ns; });
  const int64_t now_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now.time_since_epoch()).count();
  std::string text = fmt::format(
      "# flight recorder of {} (pid {}), {}: the last {} operations\n# dumped because: {}\n"
      "# seconds before the dump, worker, its step, shard, bucket of the shard, what\n",
      task, getpid(), utc_text(), marks.size(), why);
  for (const Mark& mark : marks) {
    // A negative number is a time before the dump.
    const auto seconds = static_cast<double>(mark.at_ns - now_ns) * 1e-9;
    // A mark of the whole exchange belongs to no shard and no bucket.
    const bool whole = mark.kind == Mark::Kind::begun || mark.kind == Mark::Kind::done;
    const std::string place =
        whole ? fmt::format("{:>5}  {:>6}", "-", "-") : fmt::format("{:>5}  {:>6}", mark.shard, mark.bucket);
    fmt::format_to(std::back_inserter(text), "{:>14.6f}  {:>6}  {:>8}  {}  {}\n", seconds, mark.worker, mark.step,
                   place, name_of(mark.kind));
  }
  return text;
}

FlightDump::FlightDump(std::string folder, std::string task) : folder_(std::move(folder)), task_(std::move(task)) {}

absl::StatusOr<std::string> FlightDump::write(const std::vector<Mark>& marks, const std::string& why) {
  // The overload has an error code: an exception must not end the task, for which the dump is secondary.
  std::error_code error;
  const std::filesystem::path folder =
      folder_.empty() ? std::filesystem::temp_directory_path(error) : std::filesystem::path(folder_);
  if (!error) std::filesystem::create_directories(folder, error);
  if (error) return absl::FailedPreconditionError(fmt::format("{}: mkdir: {}", folder.string(), error.message()));
  std::string name = task_;
  // "worker/1" would name a folder.
  std::replace(name.begin(), name.end(), '/', '-');
  // Process number and count make the name unique in a folder that several tasks share.
  std::string path = fmt::format("{}/gradrail-flight-{}-{}-{}.txt", folder.string(), name, getpid(), ++count_);
  const std::string text = flight_text(marks, task_, why, Clock::now());
  // The file must not exist: all users write to a folder for temporary files. No fsync: an exchange may be waiting.
  const FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
  if (!file) return failed(path, "open");
  if (!write_all(file.get(), text)) return failed(path, "write");
  return path;
}

}  // namespace gradrail::tools
