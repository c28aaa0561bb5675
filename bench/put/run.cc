#include "bench/put/run.h"

#include <algorithm>
#include <cstdio>

#include "CLI/CLI.hpp"
#include "base/output_file.h"
#include "base/read_file.h"
#include "base/status.h"
#include "base/version.h"
#include "bench/driver/harness.h"
#include "bench/put/pair.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace gradrail::bench {
namespace {

constexpr uint64_t kSmallest = 8;  // a stamp

absl::StatusOr<std::vector<uint64_t>> sizes_of(const PutFlags& flags) {
  std::vector<uint64_t> sizes;
  for (const std::string& text : flags.sizes) {
    sizes.push_back(parse_size(text));
    if (sizes.back() < kSmallest) {
      return absl::InvalidArgumentError(
          fmt::format("--sizes {}: a number of bytes, at least {} (K, M, G may follow)", text, kSmallest));
    }
  }
  if (sizes.empty()) return absl::InvalidArgumentError("--sizes: none");
  return sizes;
}

absl::StatusOr<PairLink> link_of(const PutFlags& flags) {
  if (!flags.listen.empty()) return PairLink::listen(flags.listen);
  if (!flags.connect.empty()) return PairLink::connect(flags.connect);
  return PairLink::fork_two();
}

void print_header(const std::string& contender, const std::string& path, const PutFlags& flags) {
  fmt::print("# {} over {} | {} | {} | {} s a figure | spinning\n", contender, path, build_version(), machine(),
             flags.seconds);
  fmt::print("# latency: half a round trip. bandwidth: us of one window, GB/s over the mean\n");
  fmt::print("{:10} {:>9} {:>7} {:>8} {:>10} {:>10} {:>10} {:>10} {:>9} {:>6}\n", "# what", "bytes", "window", "count",
             "min us", "p50 us", "p99 us", "mean us", "GB/s", "#wrong");
}

double gb_per_s(const PutLoad& load, double micros) {
  return static_cast<double>(load.bytes) * load.window / micros * 1e-3;
}

void print(const std::string& what, const PutLoad& load, const PutFigure& figure) {
  fmt::print("{:10} {:>9} {:>7} {:>8} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f} {:>9.3f} {:>6}\n", what, load.bytes,
             load.window, figure.times.count, figure.times.min_us, figure.times.p50_us, figure.times.p99_us,
             figure.times.mean_us, gb_per_s(load, figure.times.mean_us), figure.wrong);
  std::fflush(stdout);
}

class Run {
 public:
  Run(std::string contender, const PutFlags& flags, PairLink& link, PutEnd& end)
      : contender_(std::move(contender)), flags_(flags), end_(end), pair_(link, end) {}

  absl::StatusOr<uint64_t> lead(const std::vector<uint64_t>& sizes) {
    print_header(contender_, end_.path(), flags_);
    uint64_t wrong = 0;
    for (const uint64_t bytes : sizes) {
      for (const std::string what : {"latency", "bandwidth"}) {
        if (flags_.what.find(what) == std::string::npos) continue;
        GRADRAIL_ASSIGN_OR_RETURN(const uint64_t found, lead_one(what, bytes));
        wrong += found;
      }
    }
    GRADRAIL_RETURN_IF_ERROR(pair_.end());
    return wrong;
  }

  absl::Status answer() { return pair_.answer(); }

 private:
  absl::StatusOr<uint64_t> lead_one(const std::string& what, uint64_t bytes) {
    PutLoad load{.bytes = bytes, .window = 1, .seconds = flags_.seconds};
    if (what == "bandwidth") {
      load.window = PutPair::window_of(flags_.window, bytes);
    }
    GRADRAIL_ASSIGN_OR_RETURN(const PutFigure figure, pair_.lead(what, load));
    print(what, load, figure);
    write_json(what, load, figure);
    return figure.wrong;
  }

  void write_json(const std::string& what, const PutLoad& load, const PutFigure& figure) const {
    if (flags_.json.empty()) return;
    // Opened per figure: an interrupted run keeps the lines that it has.
    const nlohmann::json line{{"question", "put"},
                              {"contender", contender_},
                              {"path", end_.path()},
                              {"what", what},
                              {"bytes", load.bytes},
                              {"window", load.window},
                              {"count", figure.times.count},
                              {"min_us", figure.times.min_us},
                              {"p50_us", figure.times.p50_us},
                              {"p99_us", figure.times.p99_us},
                              {"mean_us", figure.times.mean_us},
                              {"gb_per_s", gb_per_s(load, figure.times.mean_us)},
                              {"wrong", figure.wrong},
                              {"machine", machine()},
                              {"commit", build_version()}};
    const std::string text = line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    const absl::Status written = write_file(flags_.json, text, WriteMode::append);
    if (!written.ok()) fmt::print(stderr, "--json {}\n", message_of(written));
  }

  const std::string contender_;
  const PutFlags& flags_;
  PutEnd& end_;
  PutPair pair_;
};

int complain(const std::string& contender, const absl::Status& why) {
  fmt::print(stderr, "{}: {}\n", contender, message_of(why));
  return 1;
}

}  // namespace

void add_flags(CLI::App& app, PutFlags& flags) {
  app.add_option("--sizes", flags.sizes, "bytes of one put; K, M, G may follow")->delimiter(',')->capture_default_str();
  app.add_option("--seconds", flags.seconds, "per figure")->capture_default_str();
  app.add_option("--window", flags.window, "bandwidth: maximum number of puts between two notices")
      ->capture_default_str()
      ->check(CLI::Range(2u, 64u));
  app.add_option("--what", flags.what, "latency, bandwidth or both")->capture_default_str();
  CLI::Option* const listen = app.add_option("--listen", flags.listen, "two hosts: host:port to wait at for the other");
  app.add_option("--connect", flags.connect, "two hosts: host:port of the other, which listens")->excludes(listen);
  app.add_option("--bind-host", flags.bind_host, "address of the interface to use");
  app.add_option("--json", flags.json, "append one JSON line per figure to this file");
}

int run_puts(const std::string& contender, const PutFlags& flags, const OpenPutEnd& open) {
  const absl::StatusOr<std::vector<uint64_t>> sizes = sizes_of(flags);
  // Exit code 2: wrong flags. 1: nothing was measured. 3: bytes arrived wrong.
  if (!sizes.ok()) return complain(contender, sizes.status()) + 1;
  if (!flags.json.empty()) {
    const absl::Status usable = check_output_file(flags.json, OutputKind::in_place);
    if (!usable.ok())
      return complain(contender, absl::Status(usable.code(), fmt::format("--json {}", message_of(usable)))) + 1;
  }
  absl::StatusOr<PairLink> link = link_of(flags);
  if (!link.ok()) return complain(contender, link.status());
  // The other end may have been given other sizes: this one's count.
  uint64_t largest = *std::max_element(sizes->begin(), sizes->end());
  if (link->leads()) {
    if (absl::Status said = link->say(std::to_string(largest)); !said.ok()) return complain(contender, said);
  } else {
    const absl::StatusOr<std::string> heard = link->hear([] {});
    if (!heard.ok()) return complain(contender, heard.status());
    largest = parse_size(*heard);
    if (largest < kSmallest)
      return complain(contender, absl::DataLossError("the other process speaks another language"));
  }
  const absl::StatusOr<std::unique_ptr<PutEnd>> end = open(*link, largest);
  if (!end.ok()) return complain(contender, end.status());
  Run run(contender, flags, *link, **end);
  if (!link->leads()) {
    const absl::Status status = run.answer();
    return status.ok() ? 0 : complain(contender, status);
  }
  const absl::StatusOr<uint64_t> wrong = run.lead(*sizes);
  if (!wrong.ok()) return complain(contender, wrong.status());
  return *wrong == 0 ? 0 : 3;
}

}  // namespace gradrail::bench
