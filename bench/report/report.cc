#include "bench/report/report.h"
#include "base/version.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "base/read_file.h"
#include "base/status.h"
#include "bench/driver/busy.h"
#include "bench/driver/harness.h"
#include "bench/report/versions.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "topology/pin.h"

namespace gradrail::bench {
namespace {

/// Nodes that its memory may use, in the format of the kernel.
std::string allowed_nodes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    // 18 is the length of this name.
    if (line.starts_with("Mems_allowed_list:")) return line.substr(line.find_first_not_of(" \t", 18));
  return "";
}

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return name;
}

}  // namespace

Rank this_rank(const std::string& task) {
  const std::string cpus = topology::usable_cpus().to_string();
  return {.task = task,
          .host = host_name(),
          .process = getpid(),
          .device = "cpu",
          .nic = "",
          .cpus = cpus.empty() ? "?" : cpus,
          .numa = allowed_nodes()};
}

Report::Report(const Options& options, std::string title) : options_(options), title_(std::move(title)) {
  note(title_);
  // The head of a table names program and machine: a printed table alone must be enough to repeat it.
  note(fmt::format("{} | {}", build_version(), machine()));
  note(fmt::format("{} round{} of {} s", options_.rounds, options_.rounds == 1 ? "" : "s", options_.seconds));
  // The check precedes the first row: afterwards our own processes would count as load.
  if (const std::string busy = busy_warning(); !busy.empty()) note(busy);
}

void Report::note(const std::string& line) {
  if (prints_table()) fmt::print("# {}\n", line);
}

void Report::rank(const Rank& rank) {
  if (prints_table()) {
    fmt::print("#  rank {} {} host {} pid {} device {} nic {} numa {} cores {}\n", ranks_.size(), rank.task, rank.host,
               rank.process, rank.device, rank.nic.empty() ? "-" : rank.nic, rank.numa.empty() ? "-" : rank.numa,
               rank.cpus);
  }
  ranks_.push_back(rank);
}

void Report::begin(Layout layout) {
  layout_ = layout;
  print_header();
  if (records() && lines_.empty()) record(head());
  std::fflush(stdout);  // the first row may take minutes
}

void Report::print_header() {
  if (!prints_table()) return;
  if (layout_ == Layout::latency) {
    fmt::print("# {:<28} {:>9} {:>11} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>6}\n", "path", "#bytes",
               "#iterations", "t_min", "t_max", "t_typical", "t_avg", "t_stdev", "99%", "99.9%", "#wrong");
    fmt::print("# {:<28} {:>9} {:>11} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}\n", "", "", "", "[usec]", "[usec]",
               "[usec]", "[usec]", "[usec]", "[usec]", "[usec]");
    return;
  }
  fmt::print("# {:<38} {:>10} {:>10} {:>7} {:>10} {:>10} {:>8} {:>8} {:>6}\n", "path", "size", "count", "type", "time",
             "99%", "algbw", "busbw", "#wrong");
  fmt::print("# {:<38} {:>10} {:>10} {:>7} {:>10} {:>10} {:>8} {:>8}\n", "", "(B)", "(elements)", "", "(us)", "(us)",
             "(GB/s)", "(GB/s)");
}

void Report::print_failed(const Figure& f) {
  if (prints_table()) fmt::print("  {:<38} {:>10} not measured: {}\n", f.path, f.bytes, f.failed);
}

void Report::print_row(const Figure& f) {
  const Times& t = f.times;
  if (layout_ == Layout::latency) {
    fmt::print("  {:<28} {:>9} {:>11} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f} {:>6}", f.path,
               f.bytes, t.count, t.min_us, t.max_us, t.p50_us, t.mean_us, t.stdev_us, t.p99_us, t.p999_us, f.wrong);
  } else {
    const std::string p99 = t.p99_us > 0 ? fmt::format("{:.2f}", t.p99_us) : "-";  // others may not report it
    fmt::print("  {:<38} {:>10} {:>10} {:>7} {:>10.2f} {:>10} {:>8.3f} {:>8.3f} {:>6}", f.path, f.bytes, f.count,
               f.type, t.p50_us, p99, f.alg_gb_per_s(), f.bus_gb_per_s(), f.wrong);
  }
  for (const auto& [name, value] : f.more) fmt::print(" {}={:.4g}", name, value);
  fmt::print("\n");
  // Stages are printed as comments, so that the rows stay columns.
  if (!f.why_no_stages.empty()) fmt::print("#   no stages: {}\n", f.why_no_stages);
  if (f.stages.empty()) return;
  std::string text;
  for (const auto& [name, value] : f.stages) text += fmt::format("{}{} {:.2f}", text.empty() ? "" : " | ", name, value);
  fmt::print("#   {}\n", text);
}

void Report::add(Figure f) {
  if (prints_table()) f.failed.empty() ? print_row(f) : print_failed(f);
  if (records()) record(to_json(f));
  // A row is visible as soon as it is complete, also through a pipe: a run may take minutes.
  std::fflush(stdout);
  figures_.push_back(std::move(f));
}

nlohmann::json Report::head() const {
  nlohmann::json devices = nlohmann::json::array();
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const Rank& r = ranks_[i];
    devices.push_back({{"rank", i},
                       {"task", r.task},
                       {"host", r.host},
                       {"pid", r.process},
                       {"device", r.device},
                       {"nic", r.nic},
                       {"numa", r.numa},
                       {"cores", r.cpus}});
  }
  // "question" is the former name of a suite: recorded runs have it.
  nlohmann::json config = {{"question", options_.suite}};
  for (const auto& [name, value] : options_.settings) config[name] = nlohmann::json::parse(value);
  return {{"version", build_version()}, {"title", title_},          {"arguments", options_.arguments},
          {"machine", machine()},       {"libraries", libraries()}, {"config", config},
          {"devices", devices}};
}

void Report::record(const nlohmann::json& json) {
  // Arguments are bytes of the user: invalid UTF-8 is replaced, since an exception would lose the figures.
  const std::string line = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (!prints_table()) fmt::print("{}", line);
  lines_ += line;
}

int Report::finish(bool failures_count) {
  uint64_t wrong = 0;
  int code = 0;
  for (const Figure& figure : figures_) {
    wrong += figure.wrong;
    // A suite that tries every path expects failures; a suite with named ones does not.
    if (figure.failed_in_use || (!figure.failed.empty() && failures_count)) code = 1;
  }
  if (prints_table()) fmt::print("# Out of bounds values : {} {}\n", wrong, wrong == 0 ? "OK" : "FAILED");
  if (!options_.json.empty()) {
    // Overwrites the file: it holds one run.
    if (const absl::Status written = write_file(options_.json, lines_, WriteMode::replace); !written.ok()) {
      fmt::print(stderr, "gradrail bench: -J {}\n", message_of(written));
      code = 1;
    }
  }
  // This code precedes all others: figures of a path that changes bytes must not count.
  if (wrong > 0) return kWrongResult;
  const bool measured =
      std::any_of(figures_.begin(), figures_.end(), [](const Figure& figure) { return figure.failed.empty(); });
  return measured || code != 0 ? code : kNothingMeasured;
}

}  // namespace gradrail::bench
