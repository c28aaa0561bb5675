#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace CLI {
class App;
}

namespace gradrail::bench {

class RankCoordinator;

constexpr uint32_t kMaxBucketKib = 1 << 20;  // a bucket of 1 GiB

/// Options of all suites. Each suite has further options. Sizes may have the suffixes K, M, G.
struct Options {
  std::string suite;
  std::vector<std::string> arguments;                         ///< arguments as typed, for records
  std::vector<std::pair<std::string, std::string>> settings;  ///< settings_of(), for records

  std::string begin;  ///< -b; "": the suite's own, as for the next
  std::string end;    ///< -e
  uint32_t factor = 4;
  uint64_t iterations = 0;  ///< -n; 0: as many as fill `seconds`
  uint64_t warmup = 0;      ///< -w; 0: a tenth of those
  bool check = true;        ///< -c
  double seconds = 0.3;     ///< time for each figure and round
  uint32_t rounds = 3;

  std::vector<std::string> transports;  ///< --transport; none: every one
  std::string ofi_provider;
  std::string bind_host;
  std::string plugin_dir;
  bool block = false;
  RankCoordinator* coordinator = nullptr;  ///< null: everything is forked on this host

  std::string format = "table";
  std::string json;
};

/// The flags that all suites share; every suite's subcommand gets them.
void add_flags(CLI::App& app, Options& options);

/// Removes flags of all suites that would have no effect in this one.
void remove_flags(CLI::App& app, std::initializer_list<const char*> names);

/// Sizes begin, begin × factor, … up to end; `begin` and `end` are defaults.
/// Errors  INVALID_ARGUMENT: not sizes, or not multiples of `unit`; the text names which.
absl::StatusOr<std::vector<uint64_t>> sizes(const Options& options, const std::string& begin, const std::string& end,
                                            uint64_t unit);

/// The settings that make two runs comparable, from the flags of a parsed subcommand. A flag has the
/// name of its long form, and its value is JSON: the default of the flag, or "" where it has none.
std::vector<std::pair<std::string, std::string>> settings_of(const CLI::App& app);

}  // namespace gradrail::bench
