// What does one exchange cost, beside its bounds and its peers, in one run? Every contender runs in turn at every size,
// several rounds; each figure is the median over the rounds.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>

#include "CLI/CLI.hpp"
#include "base/log.h"
#include "bench/exchange_contenders.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace gradrail::bench {
namespace {

struct Flags {
  std::vector<std::string> sizes = {"4096", "318040", "4M", "64M"};
  double seconds = 0.5;
  uint32_t rounds = 3;
  bool touch = false;
  bool block = false;
  uint32_t bucket_bytes = 0;
  std::string json;
  std::string only;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0.0 : values[values.size() / 2];
}

/// The rounds of one contender at one size as one sample.
Sample merge(const std::vector<Sample>& rounds) {
  Sample merged = rounds.front();
  std::vector<double> p50, p99;
  merged.iterations = merged.wrong = 0;
  for (const Sample& sample : rounds) {
    if (!sample.failed.empty()) return sample;
    p50.push_back(sample.p50_us);
    p99.push_back(sample.p99_us);
    merged.min_us = std::min(merged.min_us, sample.min_us);
    merged.iterations += sample.iterations;
    merged.wrong += sample.wrong;
  }
  merged.p50_us = median(p50);
  merged.p99_us = median(p99);
  return merged;
}

void print_header(const Flags& flags) {
  fmt::print("# gradrail exchange: push + SGD + parameters back, one worker, one shard, two processes\n");
  fmt::print("# {} | {} | {} rounds of {} s | {} | gradient {}\n", GRADRAIL_COMMIT, machine(), flags.rounds,
             flags.seconds, flags.block ? "blocking" : "spinning",
             flags.touch ? "written anew each time" : "not touched between exchanges");
  fmt::print("# GB/s: bytes both ways over p50. x bound: p50 over that of one fused apply.\n");
  fmt::print("{:24} {:>10} {:>9} {:>10} {:>10} {:>10} {:>8} {:>8} {:>6}\n", "# contender", "bytes", "count", "min us",
             "p50 us", "p99 us", "GB/s", "x bound", "#wrong");
}

void print_row(const Sample& sample, double bound_us) {
  if (!sample.failed.empty()) {
    fmt::print("{:24} {:>10} failed: {}\n", sample.contender, sample.bytes, sample.failed);
    return;
  }
  fmt::print("{:24} {:>10} {:>9} {:>10.2f} {:>10.2f} {:>10.2f} {:>8.2f} {:>8.2f} {:>6}\n", sample.contender,
             sample.bytes, sample.iterations, sample.min_us, sample.p50_us, sample.p99_us,
             2.0 * static_cast<double>(sample.bytes) / sample.p50_us * 1e-3,
             bound_us > 0 ? sample.p50_us / bound_us : 0.0, sample.wrong);
  std::fflush(stdout);
}

void write_json(const Flags& flags, const std::vector<Sample>& samples) {
  std::ofstream file(flags.json, std::ios::app);
  for (const Sample& s : samples) {
    file << nlohmann::json{{"question", "exchange"},     {"contender", s.contender}, {"bytes", s.bytes},
                           {"iterations", s.iterations}, {"min_us", s.min_us},       {"p50_us", s.p50_us},
                           {"p99_us", s.p99_us},         {"wrong", s.wrong},         {"failed", s.failed},
                           {"rounds", flags.rounds},     {"touch", flags.touch},     {"block", flags.block},
                           {"machine", machine()},       {"commit", GRADRAIL_COMMIT}}
                .dump()
         << "\n";
  }
}

int run(const Flags& flags) {
  const ExchangeOptions options{.touch = flags.touch, .block = flags.block, .bucket_bytes = flags.bucket_bytes};
  std::vector<Contender> contenders = bounds(options);
  for (auto&& list : {ours(options), peers(options, GRADRAIL_MPI_PROGRAM)}) {
    contenders.insert(contenders.end(), list.begin(), list.end());
  }
  print_header(flags);
  std::vector<Sample> all;
  int code = 0;
  for (const std::string& text : flags.sizes) {
    const uint64_t bytes = parse_size(text);
    if (bytes < sizeof(float) || bytes % sizeof(float) != 0) {
      fmt::print(stderr, "--sizes {}: must be a positive multiple of 4 bytes (K, M, G may follow)\n", text);
      return 2;
    }
    std::map<std::string, std::vector<Sample>> rounds;
    for (uint32_t round = 0; round < flags.rounds; ++round) {
      for (const Contender& contender : contenders) {
        if (contender.name.find(flags.only) == std::string::npos) continue;
        rounds[contender.name].push_back(run_apart(contender, bytes, flags.seconds));
      }
    }
    double bound_us = 0.0;
    for (const Contender& contender : contenders) {
      if (!rounds.contains(contender.name)) continue;
      const Sample sample = merge(rounds[contender.name]);
      if (contender.name == "bound: one fused apply") bound_us = sample.p50_us;
      print_row(sample, bound_us);
      if (sample.wrong > 0) code = 3;
      if (!sample.failed.empty() && code == 0) code = 1;
      all.push_back(sample);
    }
  }
  if (!flags.json.empty()) write_json(flags, all);
  return code;
}

}  // namespace
}  // namespace gradrail::bench

int main(int argc, char** argv) {
  gradrail::bench::Flags flags;
  CLI::App app("What one gradient exchange costs, beside its bounds and its peers", "exchange");
  app.add_option("--sizes", flags.sizes, "bytes of the gradient; K, M, G may follow")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--seconds", flags.seconds, "per contender, size and round")->capture_default_str();
  app.add_option("--rounds", flags.rounds, "contenders take turns this often")->capture_default_str();
  app.add_flag("--touch", flags.touch, "the worker writes its gradient before each exchange (not timed)");
  app.add_flag("--block", flags.block, "ours blocks instead of spinning");
  app.add_option("--bucket_bytes", flags.bucket_bytes, "0: the default")->capture_default_str();
  app.add_option("--only", flags.only, "contenders whose name contains this");
  app.add_option("--json", flags.json, "append one JSON line per row to this file");
  CLI11_PARSE(app, argc, argv);
  gradrail::start_log("bench");
  return gradrail::bench::run(flags);
}
