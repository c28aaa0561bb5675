#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/export.h"

namespace gradrail::ps {

/// Index of a worker task in the cluster specification.
using WorkerIndex = uint32_t;

enum class ModeKind : uint8_t {
  async,   ///< each gradient is applied when it arrives
  sync,    ///< the gradients of a step are averaged and applied once
  ssp,     ///< as async, but no worker runs more than `bound` steps ahead of the slowest one
  backup,  ///< as sync, but the last `bound` gradients of a step are not waited for: they are dropped
};

/// How the gradients of several workers become updates. Both ends compare it when a worker joins.
/// Source  ssp: Ho et al., NeurIPS 2013 (stale synchronous parallel). backup: Chen et al., ICLR workshop 2016.
struct Mode {
  ModeKind kind = ModeKind::async;
  /// All modes but async wait for tasks 0 … worker_count-1 from the start. Other tasks may join later. A worker that
  /// has left or was lost is not waited for.
  uint32_t worker_count = 1;
  uint32_t bound = 0;

  /// Each step is applied once for all workers: its number is the version that it produces.
  bool sums() const { return kind == ModeKind::sync || kind == ModeKind::backup; }
  /// A step may wait for other workers.
  bool waits() const { return kind != ModeKind::async; }
};

/// The elements of a gradient on its way to a shard.
enum class PushFormat : uint8_t {
  fp32 = 0,
  bf16 = 1,  ///< the upper half of an fp32, rounded to nearest even; the worker adds the rest to its next gradient
};
constexpr size_t element_bytes(PushFormat format) { return format == PushFormat::bf16 ? 2 : 4; }

/// As on the command line: async, sync, ssp:K, backup:B. worker_count keeps its default.
/// Errors  INVALID_ARGUMENT lists the modes.
GRADRAIL_EXPORT absl::StatusOr<Mode> parse_mode(std::string_view text);
GRADRAIL_EXPORT std::string mode_text(const Mode& mode);

/// Names as on the command line: fp32, bf16.
/// Errors  INVALID_ARGUMENT lists the names.
GRADRAIL_EXPORT absl::StatusOr<PushFormat> parse_push_format(std::string_view name);
GRADRAIL_EXPORT std::string_view push_format_name(PushFormat format);
GRADRAIL_EXPORT std::vector<std::string> push_format_names();

}  // namespace gradrail::ps
