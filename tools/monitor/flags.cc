#include "tools/monitor/flags.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "CLI/CLI.hpp"
#include "base/flags/number_in.h"
#include "base/net_address.h"
#include "fmt/format.h"
#include "ps/protocol/trace_marks.h"

namespace gradrail::tools {
namespace {

/// More than 600 MB of marks per task is a typing error rather than a wish.
constexpr uint32_t kMostRecords = 1 << 24;  // 40 bytes each

/// A name is refused: the library resolves none, and would only report that it cannot listen.
std::string must_be_an_address(const std::string& text) {
  if (is_ip_address(text, AF_INET) || is_ip_address(text, AF_INET6)) return "";
  return fmt::format("'{}' must be an address of this host, such as 127.0.0.1 or ::1", text);
}

}  // namespace

void add_metrics_flags(CLI::App& command, MonitoringFlags& flags) {
  command.option_defaults()->group("Monitoring");
  CLI::Option* const port =
      command
          .add_option("--metrics_port,--metrics-port", flags.metrics_port,
                      "serve Prometheus here, 0: any port; in a local cluster each task takes the next one")
          ->transform(NumberIn<uint16_t>(0))
          ->take_last();
  command
      .add_option("--metrics_bind,--metrics-bind", flags.metrics_bind,
                  "address to serve it on; 0.0.0.0: all of this host's")
      ->check(must_be_an_address)
      ->needs(port)
      ->capture_default_str()
      ->take_last();
}

void add_monitoring_flags(CLI::App& command, MonitoringFlags& flags) {
  add_metrics_flags(command, flags);
  command
      .add_option(
          "--logs_path,--logs-path", flags.logs_path,
          "folder for TensorBoard summaries (a subfolder for each worker) and for records of the flight recorder")
      ->take_last();
  command
      .add_option("--flight_records,--flight-records", flags.flight_records,
                  "operations that each task remembers, to write them down when the run fails or on SIGUSR1; 0: none")
      ->transform(NumberIn(0u, kMostRecords))
      ->capture_default_str()
      ->take_last();
  command
      .add_option("--timeline_filename,--timeline-filename", flags.timeline,
                  "chief: a picture of the last steps of all tasks, for chrome://tracing; give it to all tasks")
      ->take_last();
}

size_t MonitoringFlags::marks() const {
  // A timeline draws the marks of the flight recorder, and needs as many as one upload takes.
  // Without a timeline the user's number counts, also 0.
  return timeline.empty() ? flight_records : std::max<size_t>(flight_records, ps::kMaxTraceMarks);
}

// Before the run: a flag that has no effect must not be found out after hours.
absl::Status check_monitoring(const MonitoringFlags& flags, bool alone) {
  if (alone && flags.metrics_port.has_value()) {
    return absl::InvalidArgumentError(
        "--metrics_port: with --ps 0 there is no exchange to measure; --logs_path has the run's summaries");
  }
  if (alone && !flags.timeline.empty())
    return absl::InvalidArgumentError("--timeline_filename: with --ps 0 there is no exchange to draw");
  return absl::OkStatus();
}

absl::Status make_logs_folder(const MonitoringFlags& flags) {
  if (flags.logs_path.empty()) return absl::OkStatus();
  std::error_code error;
  std::filesystem::create_directories(flags.logs_path, error);
  if (!error && access(flags.logs_path.c_str(), W_OK | X_OK) != 0) error.assign(errno, std::generic_category());
  // A full disk does not end a run: each task has a warning for the file that it cannot write.
  if (!error || error.value() == ENOSPC || error.value() == EDQUOT) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("--logs_path: {}: {}; give a folder that this user can write to", flags.logs_path, error.message()));
}

}  // namespace gradrail::tools
