#include "tools/train/gpu_probe.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>

#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gpu/driver/device.h"
#include "gpu/driver/driver.h"

namespace gradrail::tools {
namespace {

/// A host with eight GPUs and no persistence daemon takes seconds to wake them.
constexpr Duration kTimeout = std::chrono::seconds(30);

/// The first text in the line of a driver that does not work.
constexpr std::string_view kDriverFailed = "failed\t";

/// In the child: a line for each GPU, "ordinal <tab> address <tab> name", or one that says why there is none.
std::string probe_driver() {
  const absl::StatusOr<std::vector<gpu::DeviceInfo>> devices = gpu::list_devices();
  if (!devices.ok())
    return fmt::format("{}{}\n", gpu::Driver::is_installed() ? kDriverFailed : "", message_of(devices.status()));
  if (devices->empty()) return "the NVIDIA driver shows no GPU (is CUDA_VISIBLE_DEVICES set?)\n";
  std::string text;
  for (const gpu::DeviceInfo& device : *devices) {
    text += fmt::format("{}\t{}\t{}\n", device.ordinal, device.pci_address, device.name);
  }
  return text;
}

[[noreturn]] void answer(int to) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::string text = probe_driver();
  for (size_t sent = 0; sent < text.size();) {
    const ssize_t count = write(to, text.data() + sent, text.size() - sent);
    if (count <= 0) break;
    sent += static_cast<size_t>(count);
  }
  _exit(0);  // the driver's exit handlers are of no use here
}

/// All that comes until the other end is closed; false when that takes too long.
bool read_all(int from, std::string& text) {
  const TimePoint deadline = Clock::now() + kTimeout;
  for (char buffer[4096];;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd fd = {.fd = from, .events = POLLIN, .revents = 0};
    const int ready = poll(&fd, 1, static_cast<int>(std::max<int64_t>(0, left)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    const ssize_t count = read(from, buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return true;
    text.append(buffer, static_cast<size_t>(count));
  }
}

ProbedGpus parse(const std::string& text) {
  ProbedGpus found;
  const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  for (const std::string& line : lines) {
    const std::vector<std::string> parts = absl::StrSplit(line, '\t');
    ProbedGpu gpu;
    if (parts.size() == 3 &&
        std::from_chars(parts[0].data(), parts[0].data() + parts[0].size(), gpu.ordinal).ec == std::errc()) {
      gpu.pci_address = parts[1];
      gpu.name = parts[2];
      found.gpus.push_back(gpu);
    } else {
      found.driver_failed = line.starts_with(kDriverFailed);
      found.why_none = found.driver_failed ? line.substr(kDriverFailed.size()) : line;
    }
  }
  if (!found.gpus.empty()) found.why_none.clear();
  return found;
}

std::string how_it_ended(int status) {
  return WIFSIGNALED(status) ? fmt::format("the NVIDIA driver crashed ({})", strsignal(WTERMSIG(status)))
                             : "the NVIDIA driver ended the process that asked it for GPUs";
}

}  // namespace

ProbedGpus probe_gpus() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return {.why_none = fmt::format("pipe: {}", std::strerror(errno))};
  std::fflush(nullptr);  // else the child may print our buffers again
  const pid_t child = fork();
  if (child == 0) answer(ends[1]);
  close(ends[1]);
  std::string text;
  const bool answered = child > 0 && read_all(ends[0], text);
  close(ends[0]);
  if (child < 0) return {.why_none = fmt::format("fork: {}", std::strerror(errno))};
  if (!answered) kill(child, SIGKILL);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!answered)
    return {.why_none = fmt::format("the NVIDIA driver did not answer within {} s", kTimeout / std::chrono::seconds(1)),
            .driver_failed = true};
  return text.empty() ? ProbedGpus{.why_none = how_it_ended(status), .driver_failed = true} : parse(text);
}

}  // namespace gradrail::tools
