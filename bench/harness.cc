#include "bench/harness.h"

#include <poll.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/clock.h"
#include "fmt/format.h"

namespace gradrail::bench {
namespace {

constexpr size_t kFewest = 5;
constexpr int kStartUpMs = 20'000;  // joining, first touch of 64 MiB regions, mpirun

double quantile(const std::vector<double>& sorted, double q) {
  return sorted[std::min(sorted.size() - 1, static_cast<size_t>(q * static_cast<double>(sorted.size())))];
}

/// All that a child writes until it closes its end or the deadline passes.
std::string read_all(int fd, int timeout_ms) {
  const TimePoint deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  std::string text;
  char buffer[512];
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd wait{.fd = fd, .events = POLLIN, .revents = 0};
    if (left <= 0 || poll(&wait, 1, static_cast<int>(left)) <= 0) return text;
    const ssize_t count = read(fd, buffer, sizeof(buffer));
    if (count <= 0) return text;
    text.append(buffer, static_cast<size_t>(count));
  }
}

}  // namespace

Sample measure(double seconds, const std::function<void()>& prepare, const std::function<void()>& body) {
  std::vector<double> micros;
  for (const double budget : {seconds / 10, seconds}) {
    micros.clear();
    const TimePoint start = Clock::now();
    while (micros.size() < kFewest || seconds_since(start) < budget) {
      prepare();
      const TimePoint begin = Clock::now();
      body();
      micros.push_back(static_cast<double>(nanoseconds_since(begin)) * 1e-3);
    }
  }
  std::sort(micros.begin(), micros.end());
  return {.iterations = micros.size(),
          .min_us = micros.front(),
          .p50_us = quantile(micros, 0.5),
          .p99_us = quantile(micros, 0.99)};
}

Sample run_apart(const Contender& contender, uint64_t bytes, double seconds) {
  int ends[2];
  if (pipe(ends) != 0) std::abort();
  std::fflush(nullptr);  // else the child prints our buffers again
  const pid_t pid = fork();
  if (pid == 0) {
    setpgid(0, 0);
    close(ends[0]);
    const std::string line = to_line(contender.run(bytes, seconds)) + "\n";
    const bool written = write(ends[1], line.data(), line.size()) == static_cast<ssize_t>(line.size());
    _exit(written ? 0 : 1);
  }
  close(ends[1]);
  const std::string text = read_all(ends[0], kStartUpMs + static_cast<int>(seconds * 4000));
  close(ends[0]);
  kill(-pid, SIGKILL);  // whatever it left behind
  waitpid(pid, nullptr, 0);
  Sample sample = from_line(text);
  if (sample.iterations == 0 && sample.failed.empty()) sample.failed = "ended without a result, or took too long";
  sample.contender = contender.name;
  sample.bytes = bytes;
  return sample;
}

std::string to_line(const Sample& sample) {
  return fmt::format("{} {} {} {} {} {}", sample.iterations, sample.min_us, sample.p50_us, sample.p99_us, sample.wrong,
                     sample.failed);
}

Sample from_line(const std::string& line) {
  Sample sample;
  std::istringstream text(line);
  text >> sample.iterations >> sample.min_us >> sample.p50_us >> sample.p99_us >> sample.wrong;
  std::getline(text >> std::ws, sample.failed);
  return sample;
}

uint64_t parse_size(const std::string& text) {
  size_t end = 0;
  uint64_t value = 0;
  try {
    value = std::stoull(text, &end);
  } catch (const std::exception&) {  // stoull's only way to say it
    return 0;
  }
  const std::string unit = text.substr(end);
  const int shift = unit.empty() ? 0 : unit == "K" ? 10 : unit == "M" ? 20 : unit == "G" ? 30 : -1;
  return shift < 0 ? 0 : value << shift;
}

std::string machine() {
  std::string processor = "unknown processor";
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) {
      processor = line.substr(line.find(':') + 2);
      break;
    }
  }
  utsname kernel{};
  uname(&kernel);
  return fmt::format("{}, {} cores, Linux {}", processor, std::thread::hardware_concurrency(), kernel.release);
}

}  // namespace gradrail::bench
