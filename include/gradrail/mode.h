#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "gradrail/export.h"

namespace gradrail {

enum class ModeKind : uint8_t {
  async,   ///< each gradient is applied when it arrives
  sync,    ///< the gradients of a step are averaged and applied once
  ssp,     ///< as async, but no worker runs more than `bound` steps ahead of the slowest one
  quorum,  ///< as sync, but a step waits for `bound` gradients only
};

/// quorum: how long a step stays open for further gradients, from the moment at which it has enough of them.
struct Grace {
  double seconds = 0;    ///< 0 to 3,600; 0: the step is applied at that moment
  bool is_auto = false;  ///< the shard chooses, by the times at which late gradients arrived; `seconds` is 0

  bool any() const { return is_auto || seconds > 0; }
  bool operator==(const Grace&) const = default;
};

/// How the gradients of several workers become updates. Both ends compare it when a worker joins.
/// Source  ssp: Ho et al., NeurIPS 2013 (stale synchronous parallel). quorum: Chen et al., ICLR workshop 2016 (the
///         workers that a step does not wait for are backup workers; their gradients are dropped).
struct Mode {
  ModeKind kind = ModeKind::async;
  /// All modes but async wait for tasks 0 … worker_count-1 from the start. Other tasks may join later. A worker that
  /// has left or was lost is not waited for.
  uint32_t worker_count = 1;
  uint32_t bound = 0;
  Grace grace{};            ///< quorum only
  bool drops_late = false;  ///< quorum: a late gradient is lost; false: it is part of the next step

  /// Each step is applied once for all workers: its number is the version that it produces.
  bool sums() const { return kind != ModeKind::async && kind != ModeKind::ssp; }
  /// A step may wait for other workers.
  bool waits() const { return kind != ModeKind::async; }
  /// A step may leave out the gradient of a worker, which then comes too late.
  bool drops() const { return kind == ModeKind::quorum; }
  /// A step does not wait for the gradients of so many workers.
  uint32_t spared_count() const { return kind == ModeKind::quorum && bound < worker_count ? worker_count - bound : 0; }
};

/// The elements of a gradient on its way to a shard. The worker adds what a push leaves out to its next gradient (error
/// feedback). docs/design/wire-formats.md draws the bytes.
/// Source  Seide et al., Interspeech 2014 (error feedback). Dettmers, arXiv 1511.04561 (8 bits with a scale).
///         Lin et al., ICLR 2018 (the largest elements). Sarfi et al., arXiv 2508.15706 (the largest of each chunk).
struct PushFormat {
  enum Kind : uint8_t {
    fp32 = 0,
    bf16 = 1,  ///< the upper half of an fp32, rounded to nearest even
    int8 = 2,  ///< codes from -127 to 127, with a scale for each block of 64 elements
    int4 = 3,  ///< codes from -7 to 7, with a scale for each block of 64 elements
    topk = 4,  ///< the elements of the largest magnitude in each chunk of 4096, in bf16 with their indexes
  };

  /// Implicit: a kind without a parameter is a format.
  constexpr PushFormat(Kind kind = fp32, uint16_t thousandths = 0) : kind(kind), thousandths(thousandths) {}
  bool operator==(const PushFormat&) const = default;

  Kind kind;
  uint16_t thousandths;  ///< topk: the share of a chunk that a push carries, 1 to kMaxThousandths; others: 0
};

/// An index takes as many bytes as a value in bf16. Above a quarter of the elements bf16 has less than twice the bytes.
inline constexpr uint16_t kMaxThousandths = 250;

/// Names as on the command line: fp32, bf16, int8, int4, topk:P with P in percent, such as topk:1 or topk:0.5.
/// Errors  INVALID_ARGUMENT lists the names, or the range of P.
GRADRAIL_EXPORT absl::StatusOr<PushFormat> parse_push_format(std::string_view name);
GRADRAIL_EXPORT std::string push_format_name(PushFormat format);

/// The elements of parameters on their way back to a worker. The parameters at the shard stay fp32. docs/design/wire-formats.md
/// draws the bytes.
enum class ReturnFormat : uint8_t {
  fp32 = 0,
  bf16 = 1,   ///< the upper half of an fp32, rounded to nearest even; a worker computes with these values
  delta = 2,  ///< the same values at the worker; only elements with other bits than in the answer before travel
};

/// Names as on the command line: fp32, bf16, delta.
/// Errors  INVALID_ARGUMENT lists the names.
GRADRAIL_EXPORT absl::StatusOr<ReturnFormat> parse_return_format(std::string_view name);
GRADRAIL_EXPORT std::string_view return_format_name(ReturnFormat format);
GRADRAIL_EXPORT std::vector<std::string> return_format_names();

/// Parses the text of --mode: async, sync, ssp:K, quorum:K. Options of quorum follow with a comma: grace=SECONDS or
/// grace=auto, late=drop. worker_count keeps its default.
/// Errors  INVALID_ARGUMENT lists the modes.
GRADRAIL_EXPORT absl::StatusOr<Mode> parse_mode(std::string_view text);
GRADRAIL_EXPORT std::string mode_text(const Mode& mode);

}  // namespace gradrail
