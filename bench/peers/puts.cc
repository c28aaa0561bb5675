#include "bench/peers/puts.h"

#include <algorithm>
#include <map>
#include <memory>

#include "base/status.h"
#include "bench/driver/program.h"
#include "bench/driver/subprocess.h"
#include "bench/report/isolated_figures.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace gradrail::bench {
namespace {

constexpr double kTimeout_s = 90.0;  // time for both processes of a figure, and perhaps a shorter one before it

std::vector<std::string> script() { return {"python3", "-B", peers_folder() + "/compare_put.py"}; }

/// Runs the script in a separate process; the last line that it writes is JSON.
absl::StatusOr<nlohmann::json> ask(const std::vector<std::string>& words, double seconds) {
  Subprocess child([&]() -> nlohmann::json {
    std::vector<std::string> command = script();
    // A child runs it: run_program() has no deadline, and the end of the child ends the script.
    command.insert(command.end(), words.begin(), words.end());
    const absl::StatusOr<std::string> output = run_program(command);
    if (!output.ok()) return {{"failed", std::string(message_of(output.status()))}};
    const nlohmann::json answer = nlohmann::json::parse(last_line(*output), nullptr, false);
    return answer.is_discarded() ? nlohmann::json{{"failed", "compare_put.py said no figure"}} : answer;
  });
  absl::StatusOr<nlohmann::json> answer =
      child.result(Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3)));
  if (answer.ok() && answer->is_object() && answer->contains("failed"))
    return absl::UnavailableError(answer->at("failed").get<std::string>());
  return answer;
}

/// Converts to microseconds, whatever the program reports: a mean alone appears twice.
Figure figure_of(const nlohmann::json& answer, const std::string& what, uint64_t bytes) {
  Figure figure;
  Times& times = figure.times;
  if (what == "latency") {
    times.mean_us = answer.at("mean_us");
    times.p50_us = answer.value("p50_us", times.mean_us);
  } else {
    // The time of one put, so that latency and bandwidth have one unit: bytes / (GB/s) · 1e-3 are microseconds.
    const double gb_per_s = answer.at("gb_per_s");
    times.mean_us = static_cast<double>(bytes) / gb_per_s * 1e-3;
    times.p50_us = static_cast<double>(bytes) / answer.value("p50_gb_per_s", gb_per_s) * 1e-3;
  }
  times.count = answer.at("count");
  return figure;
}

/// Iterations of the other programs, so that each runs about as long as ours: taken from its last figure.
using Counts = std::map<std::pair<std::string, uint64_t>, uint64_t>;

std::vector<Figure> measure(const PutContender& contender, const Options& options, const PutPlacement& placement,
                            const std::string& what, uint64_t bytes, Counts& counts) {
  uint64_t& count = counts[{contender.path(), bytes}];
  std::vector<std::string> words = {"--one",
                                    contender.group,
                                    contender.name,
                                    what,
                                    std::to_string(bytes),
                                    "--seconds",
                                    fmt::format("{}", options.seconds),
                                    "--count",
                                    std::to_string(options.iterations > 0 ? options.iterations : count)};
  if (placement.pin) words.push_back("--pin");
  if (placement.realtime) words.push_back("--realtime");
  if (!options.bind_host.empty()) words.insert(words.end(), {"--bind-host", options.bind_host});
  const absl::StatusOr<nlohmann::json> answer = ask(words, 2 * kTimeout_s + 4 * options.seconds);
  Figure figure =
      answer.ok() ? figure_of(*answer, what, bytes) : not_measured("", bytes, std::string(message_of(answer.status())));
  // The script converts the time of this run into the number of iterations of the next round.
  if (answer.ok()) count = answer->at("next_count");
  figure.path = contender.path();
  figure.what = what;
  figure.bytes = figure.count = bytes;
  figure.type = "byte";
  figure.alg_bytes = figure.bus_bytes = static_cast<double>(bytes);
  return {figure};
}

bool reports(const PutContender& contender, const std::string& what) {
  return std::find(contender.what.begin(), contender.what.end(), what) != contender.what.end();
}

}  // namespace

absl::StatusOr<std::vector<PutContender>> put_contenders(const Options& options) {
  if (find_program("python3").empty())
    return absl::UnavailableError("python3 starts the other programs and is not installed (apt install python3)");
  GRADRAIL_ASSIGN_OR_RETURN(const nlohmann::json list, ask({"--contenders"}, kTimeout_s));
  std::vector<PutContender> contenders;
  for (const nlohmann::json& each : list) {
    const std::string group = each.at("group");
    const std::string transport = group.substr(0, group.find('-'));
    const auto& asked = options.transports;
    // A group is named after its transport: "ucx-tcp" belongs to ucx.
    if (asked.empty() || std::find(asked.begin(), asked.end(), transport) != asked.end())
      contenders.push_back({.group = group, .name = each.at("contender"), .what = each.at("whats")});
  }
  return contenders;
}

std::vector<Contestant> put_contestants(const std::vector<PutContender>& contenders, const Options& options,
                                        const PutPlacement& placement, const std::string& what) {
  const auto counts = std::make_shared<Counts>();  // counts of all rows, which outlive this call
  std::vector<Contestant> contestants;
  for (const PutContender& contender : contenders) {
    if (!reports(contender, what)) continue;
    contestants.push_back({contender.path(), [=, &options](uint64_t bytes) {
                             return measure(contender, options, placement, what, bytes, *counts);
                           }});
  }
  return contestants;
}

void add_put_ratios(const std::vector<PutContender>& contenders, std::vector<Figure>& rows) {
  const auto row_of = [&](const PutContender& contender) -> Figure* {
    for (Figure& row : rows)
      if (row.path == contender.path() && row.failed.empty()) return &row;
    return nullptr;
  };
  const PutContender* first = nullptr;
  for (const PutContender& contender : contenders) {
    // The list is sorted by group, and ours is the first of each.
    if (first == nullptr || first->group != contender.group) {
      first = &contender;
      continue;
    }
    const Figure* const ours = row_of(*first);
    Figure* const its = row_of(contender);
    if (ours == nullptr || its == nullptr) continue;
    // Medians are compared if the peer reports one: a mean includes delays by other load.
    const bool mean_only = its->times.p50_us == its->times.mean_us;
    const double ratio = mean_only ? ours->times.mean_us / its->times.mean_us : ours->times.p50_us / its->times.p50_us;
    its->more = {{mean_only ? "ours/it(mean)" : "ours/it", ratio}};
  }
}

}  // namespace gradrail::bench
