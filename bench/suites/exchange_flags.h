#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/cluster/ranks.h"
#include "bench/driver/options.h"
#include "bench/driver/rounds.h"
#include "bench/driver/transports.h"
#include "bench/suites/exchange_run.h"

namespace CLI {
class App;
}

namespace gradrail::bench {

/// The flags of suites that exchange gradients.
struct ExchangeOptions {
  uint32_t workers = 0;  ///< 0: the suite's own
  uint32_t shards = 1;
  std::string mode;  ///< "": the suite's own
  std::string optimizer = "sgd";
  std::string push = "fp32";
  std::string returns = "fp32";
  uint32_t bucket_kib = 0;       ///< 0: the client's own
  std::string rails = "off";     ///< transport::rails::parse_rails(), and no auto
  std::string streams = "auto";  ///< transport::rails::parse_streams()
  bool stages = false;
  bool no_sum = false;
  bool no_optimizer = false;
  bool no_return = false;
  bool encrypt_data = false;
  bool touch = false;

  void add_flags(CLI::App& app);
};

/// The flags of those that may run over several processes.
struct DistributedOptions {
  ExchangeOptions exchange;
  ClusterOptions cluster;

  void add_flags(CLI::App& app);
};

/// Errors  INVALID_ARGUMENT: names the flag.
absl::StatusOr<ExchangeLoad> load_of(const Options& options, const ExchangeOptions& own, uint32_t default_workers,
                                     const char* default_mode);

/// "2 workers, 1 shard, sync, sgd".
std::string describe(const ExchangeLoad& load);

/// The rows of each choice. A choice that cannot be opened keeps one row, with the reason.
std::vector<Contestant> exchange_contestants(
    const std::vector<TransportChoice>& choices,
    const std::function<std::vector<Figure>(const TransportChoice& choice, uint64_t bytes)>& measure);
/// The same, with the row of an exchange.
std::vector<Contestant> exchange_contestants(const ExchangeLoad& load, const std::vector<TransportChoice>& choices);
/// check_memory() of the largest size.
/// Shapes  sizes: as sizes() of options.h.
absl::Status check_memory_of_sizes(ExchangeLoad load, const std::vector<uint64_t>& sizes);
ExchangeLoad with(ExchangeLoad load, const TransportChoice& choice, uint64_t bytes);

/// Adds a line for each process of such a run, determined by a short one.
void add_ranks(const ExchangeLoad& load, const std::vector<TransportChoice>& choices, Report& report);

}  // namespace gradrail::bench
