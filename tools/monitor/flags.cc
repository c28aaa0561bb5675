#include "tools/monitor/flags.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <limits>
#include <system_error>

#include "CLI/CLI.hpp"
#include "base/file_descriptor.h"
#include "base/flags/number_in.h"
#include "base/net_address.h"
#include "base/output_file.h"
#include "base/status.h"
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

/// The address is one of must_be_an_address().
absl::Status check_free_port(const std::string& host, uint16_t port) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<NetAddress> addresses, resolve(host, port));
  FileDescriptor listener;
  const int error = listen_at(addresses.front(), false, listener);
  if (error == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(error == EADDRINUSE ? "the port is in use"
                                                           : std::generic_category().message(error));
}

std::string address_text(const std::string& host, uint32_t port) {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port) : fmt::format("[{}]:{}", host, port);
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

// Checks the flags before the run: a flag without effect must not be found out after hours.
absl::Status check_monitoring(const MonitoringFlags& flags, bool alone) {
  if (alone && flags.metrics_port.has_value()) {
    return absl::InvalidArgumentError(
        "--metrics_port: with --ps 0 there is no exchange to measure; --logs_path has the run's summaries");
  }
  if (alone && !flags.timeline.empty())
    return absl::InvalidArgumentError("--timeline_filename: with --ps 0 there is no exchange to draw");
  return absl::OkStatus();
}

absl::Status check_timeline(const MonitoringFlags& flags) {
  if (flags.timeline.empty()) return absl::OkStatus();
  const absl::Status usable = check_output_file(flags.timeline, OutputKind::replaced);
  if (usable.ok()) return usable;
  return absl::Status(usable.code(), fmt::format("--timeline_filename: timeline {}", message_of(usable)));
}

absl::Status check_metrics_ports(const MonitoringFlags& flags, uint32_t tasks) {
  if (flags.metrics_port.value_or(0) == 0) return absl::OkStatus();
  const uint32_t first = *flags.metrics_port;
  if (first + tasks - 1 > std::numeric_limits<uint16_t>::max())
    return absl::InvalidArgumentError(
        fmt::format("--metrics_port {}: the last of {} tasks would be given port {}, and 65535 is the last", first,
                    tasks, first + tasks - 1));
  for (uint32_t port = first; port < first + tasks; ++port) {
    const absl::Status free = check_free_port(flags.metrics_bind, static_cast<uint16_t>(port));
    if (!free.ok())
      return absl::FailedPreconditionError(fmt::format(
          "cannot serve metrics on {}: {}; --metrics_port {} needs {} free ports from it on, one for each task",
          address_text(flags.metrics_bind, port), message_of(free), first, tasks));
  }
  return absl::OkStatus();
}

absl::Status make_logs_folder(const MonitoringFlags& flags) {
  if (flags.logs_path.empty()) return absl::OkStatus();
  std::error_code error;
  std::filesystem::create_directories(flags.logs_path, error);
  // A full disk does not end a run: each task has a warning for the file that it cannot write.
  if (error.value() == ENOSPC || error.value() == EDQUOT) return absl::OkStatus();
  if (error)
    return absl::FailedPreconditionError(fmt::format("--logs_path: {}: {}; give a folder that this user can write to",
                                                     flags.logs_path, error.message()));
  const absl::Status usable = check_output_folder(flags.logs_path);
  if (usable.ok() || absl::IsResourceExhausted(usable)) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format("--logs_path: {}", message_of(usable)));
}

}  // namespace gradrail::tools
