#include "bench/driver/options.h"

#include "CLI/CLI.hpp"
#include "absl/strings/str_split.h"
#include "base/flags/number_in.h"
#include "base/flags/text_value.h"
#include "base/status.h"
#include "bench/driver/harness.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace gradrail::bench {
namespace {

absl::Status check_size(const std::string& text) {
  if (parse_size(text) > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("'{}' is no positive number of bytes, such as 64K (K, M, G may follow)", text));
}

}  // namespace

void add_flags(CLI::App& app, Options& o) {
  app.option_defaults()->group("Measurement");
  app.add_option("-b,--begin", o.begin, "smallest size in bytes; K, M, G may follow")
      ->transform(accepted_by(check_size));
  app.add_option("-e,--end", o.end, "largest size")->transform(accepted_by(check_size));
  app.add_option("-f,--factor", o.factor, "factor between two sizes")
      ->transform(NumberIn(2u, 1u << 20))
      ->capture_default_str();
  app.add_option("-n,--iterations", o.iterations, "timed operations of a round; 0: as many as --seconds permits")
      ->transform(NumberIn<uint64_t>())
      ->capture_default_str();
  app.add_option("-w,--warmup", o.warmup, "operations before the timed ones; 0: a tenth of them")
      ->transform(NumberIn<uint64_t>())
      ->capture_default_str();
  app.add_option("-c,--check", o.check, "1: verify the results; 0: do not verify them")
      ->check(CLI::IsMember({"1", "0", "true", "false"}))
      ->capture_default_str();
  app.add_option("--seconds", o.seconds, "seconds per figure and round")
      ->transform(NumberIn(1e-6, 1e6))
      ->capture_default_str();
  app.add_option("--rounds", o.rounds,
                 "number of rounds; each round measures all paths, and figures are medians over the rounds")
      ->transform(NumberIn(1u, 1000u))
      ->capture_default_str();
  app.option_defaults()->group("Transport");
  // Not delimiter(): CLI11 drops the empty parts of a list, and "," would stand for all transports.
  app.add_option_function<std::vector<std::string>>(
      "--transport",
      [&o](const std::vector<std::string>& lists) {
        for (const std::string& list : lists)
          for (const absl::string_view name : absl::StrSplit(list, ',')) o.transports.emplace_back(name);
      },
      "transports in this order: tcp, shm, ucx, ofi, or the name of a plug-in; default: all");
  app.add_option("--ofi-provider", o.ofi_provider, "ofi: name of the libfabric provider");
  app.add_option("--bind-host", o.bind_host, "address of the interface to use");
  app.add_option("--plugin-dir", o.plugin_dir, "folder with transport plug-ins");
  app.add_flag("--block", o.block, "processes block instead of spinning");
  app.option_defaults()->group("Output");
  app.add_option("--format", o.format, "table, or json: a line for the run, then one for each row")
      ->check(CLI::IsMember({"table", "json"}))
      ->capture_default_str();
  app.add_option("-J,--json", o.json, "write the whole run to this file, for gradrail-report");
}

absl::StatusOr<std::vector<uint64_t>> sizes(const Options& options, const std::string& begin, const std::string& end,
                                            uint64_t unit) {
  const auto parse = [&](const char* flag, const std::string& typed,
                         const std::string& own) -> absl::StatusOr<uint64_t> {
    const uint64_t bytes = parse_size(typed.empty() ? own : typed);
    // A size that is no whole number of elements would be rounded, and two sizes could be one.
    if (bytes > 0 && bytes % unit == 0) return bytes;
    return absl::InvalidArgumentError(
        fmt::format("{} {}: a positive multiple of {} bytes, such as {} (K, M, G may follow)", flag, typed, unit, own));
  };
  GRADRAIL_ASSIGN_OR_RETURN(const uint64_t first, parse("-b", options.begin, begin));
  // A first size without a last one means that size alone, when it lies beyond our own end.
  GRADRAIL_ASSIGN_OR_RETURN(uint64_t last, parse("-e", options.end, end));
  if (options.end.empty()) last = std::max(first, last);
  if (last < first) {
    return absl::InvalidArgumentError(
        fmt::format("-e {} is less than -b {}{}", last, first,
                    options.begin.empty() ? ", where this suite begins unless -b says otherwise" : ""));
  }
  std::vector<uint64_t> list;
  for (uint64_t bytes = first; bytes <= last; bytes *= options.factor) {
    list.push_back(bytes);
    // Before the multiplication, which could overflow.
    if (bytes > last / options.factor) break;
  }
  return list;
}

nlohmann::json config_of(const Options& o) {
  // "question" is the former name of a suite: recorded runs have it, and gradrail-report reads them.
  return {{"question", o.suite},
          {"begin", o.begin},
          {"end", o.end},
          {"factor", o.factor},
          {"iterations", o.iterations},
          {"warmup", o.warmup},
          {"check", o.check},
          {"seconds", o.seconds},
          {"rounds", o.rounds},
          {"transports", o.transports},
          {"ofi_provider", o.ofi_provider},
          {"bind_host", o.bind_host},
          {"rails", o.rails},
          {"streams", o.streams},
          {"plugin_dir", o.plugin_dir},
          {"workers", o.workers},
          {"shards", o.shards},
          {"mode", o.mode},
          {"optimizer", o.optimizer},
          {"push", o.push},
          {"return", o.returns},
          {"bucket_kib", o.bucket_kib},
          {"window", o.window},
          {"bidirectional", o.bidirectional},
          {"cluster", o.cluster},
          {"ps_hosts", o.ps_hosts},
          {"worker_hosts", o.worker_hosts},
          {"servers", o.servers},
          {"step_ms", o.step_ms},
          {"slowdown", o.slowdown},
          {"readers", o.readers},
          {"changed", o.changed},
          {"weights", o.weights},
          {"keep", o.keep},
          {"touch", o.touch},
          {"encrypt_data", o.encrypt_data},
          {"block", o.block},
          {"no_sum", o.no_sum},
          {"no_optimizer", o.no_optimizer},
          {"no_return", o.no_return},
          {"on", o.on},
          {"file", o.file},
          {"matrix", o.matrix},
          {"part", o.part},
          {"pin", o.pin},
          {"realtime", o.realtime}};
}

}  // namespace gradrail::bench
