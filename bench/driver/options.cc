#include "bench/driver/options.h"

#include <algorithm>
#include <set>

#include "CLI/CLI.hpp"
#include "absl/strings/str_split.h"
#include "base/flags/number_in.h"
#include "base/flags/text_value.h"
#include "base/status.h"
#include "bench/driver/harness.h"
#include "bench/driver/subprocess.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
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
  // delimiter() is not suitable: CLI11 drops the empty parts of a list, and "," would mean all transports.
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

void remove_flags(CLI::App& app, std::initializer_list<const char*> names) {
  for (const char* const name : names) app.remove_option(app.get_option(name));
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
  // A first size without a last one means that size alone, if it is beyond the default end.
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
    // The check precedes the multiplication, which could overflow.
    if (bytes > last / options.factor) break;
  }
  return list;
}

std::vector<std::pair<std::string, std::string>> settings_of(const CLI::App& app) {
  // The place of the output and of the task, and what does not change a row.
  static const std::set<std::string> others = {"help",       "format",     "json",  "job_name",
                                               "task_index", "rendezvous", "stages"};
  std::vector<std::pair<std::string, std::string>> settings;
  for (const CLI::Option* const option : app.get_options()) {
    std::string name = option->get_lnames().empty() ? option->get_name() : option->get_lnames().front();
    std::replace(name.begin(), name.end(), '-', '_');
    if (others.contains(name)) continue;
    const bool is_given = option->count() > 0;
    if (option->get_items_expected_max() == 0) {
      settings.emplace_back(name, is_given ? "true" : "false");
      continue;
    }
    const std::string text =
        is_given ? fmt::format("{}", fmt::join(option->results(), ",")) : option->get_default_str();
    // A number stays one: readers compute with it.
    const nlohmann::json value = nlohmann::json::parse(text, nullptr, false);
    settings.emplace_back(name, value.is_number() || value.is_boolean() ? text : text_of(nlohmann::json(text)));
  }
  return settings;
}

}  // namespace gradrail::bench
