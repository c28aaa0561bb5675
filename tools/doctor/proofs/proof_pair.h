#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "transport/registry.h"

namespace gradrail::tools::doctor {

/// Memory of one end: first half source, second half target.
class ProofMemory {
 public:
  virtual ~ProofMemory() = default;
  virtual MemorySpan span() const = 0;
  /// Writes a pattern that `seed` chooses into the source, and something else into the target.
  virtual absl::Status fill(uint32_t seed) = 0;
  /// After the other end's put was announced. DATA_LOSS: the target is not what the other end's seed makes; says where.
  virtual absl::Status compare(uint32_t seed) = 0;
};

/// Bytes in each half.
constexpr size_t kProofBytes = 256 << 10;

/// Byte `i` of what `seed` makes: differs from its neighbors, and for every seed.
std::byte proof_pattern(uint32_t seed, size_t i);
/// DATA_LOSS: `bytes` are not that; says where.
absl::Status compare_with_pattern(absl::Span<const std::byte> bytes, uint32_t seed);

/// Makes memory for an open context.
using MakeMemory = std::function<absl::StatusOr<std::unique_ptr<ProofMemory>>(const transport::Context&)>;
absl::StatusOr<std::unique_ptr<ProofMemory>> host_memory(const transport::Context& context);

struct PairOptions {
  const transport::Transport* transport = nullptr;
  transport::OpenOptions open;
  std::string listen;  ///< in the transport's own form
  MakeMemory memory = host_memory;
};

struct PairResult {
  std::string path;
  bool rdma = false;
};

/// Two contexts in two threads of this process; each puts a pattern into the other's memory and compares what came.
/// Errors  as the transport; DEADLINE_EXCEEDED; DATA_LOSS: other bytes arrived.
absl::StatusOr<PairResult> prove_pair(const PairOptions& options);

}  // namespace gradrail::tools::doctor
