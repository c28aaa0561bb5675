#pragma once

#include <vector>

#include "bench/harness.h"

namespace gradrail::bench {

struct ExchangeOptions {
  bool touch = false;         ///< the worker writes its gradient anew before each exchange, as training does; not timed
  bool block = false;         ///< block instead of spinning (ours only)
  uint32_t bucket_bytes = 0;  ///< 0: the client's default
};

/// Bounds: what no exchange can beat. memcpy of the bytes; one fused SGD apply with the result stored once more.
std::vector<Contender> bounds(const ExchangeOptions& options);

/// Ours over each transport, a real ps::Server in another process.
std::vector<Contender> ours(const ExchangeOptions& options);

/// Others doing the same push + SGD + pull between two processes: a blocking TCP socket, and Open MPI where it was
/// built
/// (`mpi_program`: path of bench/peers/mpi_exchange, "" if not).
std::vector<Contender> peers(const ExchangeOptions& options, const std::string& mpi_program);

}  // namespace gradrail::bench
