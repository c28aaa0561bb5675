#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/put/end.h"
#include "bench/put/link.h"

namespace CLI {
class App;
}

namespace gradrail::bench {

/// The flags that bench/put and its bare peers have in common.
struct PutFlags {
  std::vector<std::string> sizes = {"8", "64", "512", "4K", "32K", "256K", "2M", "4M"};
  double seconds = 0.3;
  uint32_t window = 32;
  std::string what = "latency,bandwidth";
  std::string listen;
  std::string connect;
  std::string bind_host;
  std::string json;
};

void add_flags(CLI::App& app, PutFlags& flags);

/// Opens one end and connects it with the other's, over `link`; `bytes` is the size of a slot.
using OpenPutEnd = std::function<absl::StatusOr<std::unique_ptr<PutEnd>>(PairLink& link, size_t bytes)>;

/// Runs both processes of a run: the figures of every size, as a table and as JSON lines. Returns the exit code: 1 a
/// failure, 2 wrong flags, 3 wrong bytes arrived.
int run_puts(const std::string& contender, const PutFlags& flags, const OpenPutEnd& open);

}  // namespace gradrail::bench
