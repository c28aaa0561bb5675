#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace CLI {
class App;
}

namespace gradrail::bench {

class RankCoordinator;

constexpr uint32_t kMaxBucketKib = 1 << 20;  // a bucket of 1 GiB

/// The request of `gradrail bench SUITE`. Sizes as people type them: K, M, G may follow.
struct Options {
  std::string suite;
  std::vector<std::string> arguments;  ///< as typed, for records

  std::string begin;  ///< -b; "": the suite's own, as for the next
  std::string end;    ///< -e
  uint32_t factor = 4;
  uint64_t iterations = 0;  ///< -n; 0: as many as fill `seconds`
  uint64_t warmup = 0;      ///< -w; 0: a tenth of those
  bool check = true;        ///< -c
  double seconds = 0.3;     ///< per figure and round
  uint32_t rounds = 3;

  std::vector<std::string> transports;  ///< --transport; none: every one
  std::string ofi_provider;
  std::string bind_host;
  std::string rails = "off";     ///< transport::rails::parse_rails(), and no auto
  std::string streams = "auto";  ///< transport::rails::parse_streams()
  std::string plugin_dir;
  uint32_t workers = 0;  ///< 0: the suite's own, as for the next
  uint32_t shards = 1;
  std::string mode;  ///< "": the suite's own
  std::string optimizer = "sgd";
  std::string push = "fp32";
  std::string returns = "fp32";
  uint32_t bucket_kib = 0;     ///< 0: the client's own
  uint32_t window = 32;        ///< put: between two notices, at most
  bool bidirectional = false;  ///< put: both ends put at the same time
  std::string cluster;         ///< runs over several processes: ranks.h
  std::string ps_hosts;
  std::string worker_hosts;
  std::string job_name;
  int64_t task_index = 0;
  std::string rendezvous;
  uint32_t servers = 1;
  RankCoordinator* coordinator = nullptr;  ///< null: everything is forked on this host
  double slow = 1.5;                       ///< matrix
  double step_ms = 2.0;                    ///< straggler
  double slowdown = 10.0;                  ///< straggler
  uint32_t readers = 8;                    ///< publish, as for the next three
  double changed = 0.01;
  std::string weights = "bf16";
  uint32_t keep = 2;
  bool touch = false;
  bool stages = false;     ///< exchange says them anyway …
  bool no_stages = false;  ///< … but for this
  bool no_sum = false;
  bool no_optimizer = false;
  bool no_return = false;
  bool encrypt_data = false;
  bool block = false;
  std::string on = "host";  ///< "host" or "gpu:N"; staged, paths: "gpu:N"
  std::string file;         ///< replay: "" with a matrix
  std::string matrix;       ///< replay: file of a traffic matrix; "": none
  double line_gbit = 0;     ///< replay of a matrix: rate of a link in each direction; 0: not given
  std::string part;         ///< peers: "exchange" or "put"; "": both
  bool pin = false;         ///< peers, puts: a core for each side
  bool realtime = false;    ///< peers, puts: real-time priority

  std::string format = "table";
  std::string json;
};

/// The flags that all suites share; every suite's subcommand gets them.
void add_flags(CLI::App& app, Options& options);

/// begin, begin × factor, … up to end; `begin` and `end` where the user has not said.
/// Errors  INVALID_ARGUMENT: not sizes, or not multiples of `unit`; says which.
absl::StatusOr<std::vector<uint64_t>> sizes(const Options& options, const std::string& begin, const std::string& end,
                                            uint64_t unit);

/// The settings that make two runs comparable: everything but the output's place.
nlohmann::json config_of(const Options& options);

}  // namespace gradrail::bench
