#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/driver/patience.h"
#include "bench/report/figure.h"

namespace gradrail::bench {

/// The work of a peer: `bytes` of gradient to another process, SGD, as many bytes of parameters back.
struct PeerLoad {
  uint64_t bytes = 0;
  double seconds = 0.0;
  bool touch = false;  ///< the gradient is written anew before each exchange, as training does; not timed
};

/// A peer has so long for one exchange. All of them are on this host, whose loopback interface can have a limit.
inline Duration exchange_limit(uint64_t bytes) {
  constexpr double kSlowestBytesPerSecond = 1.25e6;  // 10 Mbit/s
  return std::chrono::seconds(20) + link_time(2.0 * static_cast<double>(bytes), kSlowestBytesPerSecond);
}

/// Times of one exchange each; figure.failed has the reason if there are none.
struct Peer {
  std::string name;
  std::function<Figure(const PeerLoad& load)> run;  ///< runs in a separate process
};

/// Lower bounds of an exchange: memcpy of the bytes; one fused SGD apply with the result stored once more.
std::vector<Peer> bounds();
extern const char* const kApplyBound;  ///< name of the second

/// The lower bound of an exchange over the kernel's TCP: the bytes to another process and back, both ends spinning,
/// without frames and update.
Peer round_trip_bound();

/// The alternatives to gradrail: a blocking TCP socket; ZeroMQ, Gloo and Open MPI. Each is a program beside
/// the benchmarks (gradrail does not need their libraries), where it was built.
std::vector<Peer> peers();

/// The arguments of such a program: `PROGRAM BYTES SECONDS TOUCH`. nullopt: they are wrong.
std::optional<PeerLoad> peer_load_from(int count, char** values);
/// The whole of such a program: `PROGRAM BYTES SECONDS TOUCH [WORD]`, and its last line is a Figure.
int run_peer_program(int count, char** values,
                     const std::function<Figure(const PeerLoad&, const std::string& word)>& run);

/// Counts wrong parameters, for all peers: gradient [count] of ones, SGD with rate 1. After `updates` every parameter
/// is -updates, at least -2^24.
uint64_t count_wrong(const float* parameters, size_t count, uint64_t updates);
/// Times the exchanges of a worker and verifies its last parameters. `exchange` returns false if the connection broke.
Figure measure_exchanges(const PeerLoad& load,
                         const std::function<bool(const float* gradient, float* parameters)>& exchange);
/// The server's part: parameters -= gradient.
void apply_sgd(float* parameters, const float* gradient, size_t count, uint64_t update_index);

}  // namespace gradrail::bench
