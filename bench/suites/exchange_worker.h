#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/suites/exchange_run.h"
#include "gradrail/clock.h"
#include "nlohmann/json_fwd.hpp"
#include "ps/protocol/path_check.h"

namespace gradrail::bench {

/// Data that the processes of a run exchange beside the measurement, in memory that all of them map.
struct RunShared {
  std::atomic<int> port{0};    ///< port of the server; 0: it does not listen yet
  std::atomic<int> server{0};  ///< process of the server; 0: on another host
  // Numbers of exchanges of each worker, set by worker 0. 0: not set yet. The highest value: worker 0 has failed.
  std::atomic<uint64_t> warmup{0}, iterations{0};
  std::atomic<uint64_t> reports{0};  ///< number of reports of workers that an exchange has ended; not of each short one
};

/// Joining, the first touch of large regions and slow devices end within this time.
inline constexpr Duration kStartUp = std::chrono::seconds(20);
/// The same for a load: parameters, gradients and slots are allocated one after the other.
inline Duration start_up(const ExchangeLoad& load) { return kStartUp + 3 * ps::allocation_time(load.bytes); }
/// The servers of a bench run for seconds, hold no user data, and listen on the loopback interface by default.
inline const Security kOpen = {.insecure = true};
/// Encrypted data needs a secret; each run of a bench has the same one.
inline Security security_of(const ExchangeLoad& load) {
  return load.encrypted ? Security{.secret = "secret of a bench", .encrypt_data = true} : kOpen;
}
inline constexpr uint64_t kCalibration = 5;  ///< the first exchanges: their times set the length of the warm-up
inline constexpr size_t kMarks = 16384;      ///< marks of a task: some thousands of small exchanges, ten of 64 MiB

/// A worker of a run, from joining to leaving: {"figure", "seconds", "rank", "marks"} or {"failed"}.
nlohmann::json work(const ExchangeLoad& load, RunShared& shared, uint32_t index);

/// Number of exchanges of this duration that fill the time.
uint64_t exchanges_within(double seconds, double micros);

// Texts that both ends of a run share.
std::vector<std::string> worker_names(uint32_t count);
WaitPolicy wait_of(const ExchangeLoad& load);
nlohmann::json rank_json(const std::string& task);

}  // namespace gradrail::bench
