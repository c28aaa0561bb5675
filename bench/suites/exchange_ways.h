#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/driver/options.h"
#include "bench/driver/rounds.h"
#include "bench/driver/transports.h"
#include "bench/suites/exchange_run.h"

namespace gradrail::bench {

/// A transport with or without an RDMA device.
struct Way {
  std::string name;
  TransportChoice choice;
};

/// Each transport; those that run over devices and over sockets as two.
absl::StatusOr<std::vector<Way>> all_ways(const Options& options, bool encrypt_data);

/// A row for a way; it states the cause if it cannot be used.
Contestant way_contestant(const std::string& name, const ExchangeLoad& load, const TransportChoice& choice);

/// Gradients and parameters in GPU memory: a row for each way out of it over each transport. `opened` is what
/// can_open() has returned for the GPU; the rows state its error.
std::vector<Contestant> gpu_contestants(const ExchangeLoad& load, const std::string& gpu, const absl::Status& opened,
                                        const std::vector<Way>& ways);

}  // namespace gradrail::bench
