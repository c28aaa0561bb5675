#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "bench/driver/options.h"
#include "bench/report/figure.h"

namespace gradrail::bench {

// Exit codes; docs/benchmarking.md lists all of them.
inline constexpr int kWrongResult = 3;
inline constexpr int kNothingMeasured = 4;

/// A process of a run in the table.
struct Rank {
  std::string task;  ///< "ps/0", "worker/1", "put"
  std::string host;
  int process = 0;
  std::string device = "cpu";
  std::string nic;   ///< "": none
  std::string cpus;  ///< cpus that it may use, "0-1"
  std::string numa;  ///< its nodes; "": not known
};
/// The calling process.
Rank this_rank(const std::string& task);

enum class Layout : uint8_t {
  sweep,    ///< columns of nccl-tests: size, count, type, time, algbw, busbw, #wrong
  latency,  ///< columns of perftest: bytes, iterations, t_min, t_max, t_typical, t_avg, t_stdev, 99 %, 99.9 %
};

/// The rows of a run, printed on arrival, as a table or as lines of JSON, and stored for the file.
/// docs/benchmarking.md derives every column.
class Report {
 public:
  Report(const Options& options, std::string title);

  /// A comment line. Before the first row.
  void note(const std::string& line);
  void rank(const Rank& rank);
  /// Rows from here on are printed so.
  void begin(Layout layout);
  void add(Figure figure);

  /// Prints the end of the report and writes the file. 0: all good. 1: a path failed in use (any row without a figure
  /// where `failures_count`), or the file could not be written.
  /// 3: something was wrong. 4: nothing was measured.
  int finish(bool failures_count);

 private:
  void print_header();
  void print_row(const Figure& figure);
  void print_failed(const Figure& figure);
  nlohmann::json head() const;  ///< the first line of a recorded run; each other line is a row
  void record(const nlohmann::json& json);
  bool prints_table() const { return options_.format == "table"; }
  bool records() const { return !prints_table() || !options_.json.empty(); }

  const Options options_;
  const std::string title_;
  Layout layout_ = Layout::sweep;
  std::vector<Rank> ranks_;
  std::string lines_;  ///< lines of JSON, for the file
  std::vector<Figure> figures_;
};

}  // namespace gradrail::bench
