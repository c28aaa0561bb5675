#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "worker/publish/digest.h"
#include "worker/publish/model.h"

namespace gradrail::publish {

/// Immutable memory. Shared: the store and each reader under way hold it, in different threads.
using Bits = std::shared_ptr<const std::byte[]>;

/// The version that a reader has. A number alone does not identify it: a restarted publisher may repeat numbers.
struct Have {
  uint64_t version = 0;
  Digest digest{};
};

/// Version that a reader receives next.
enum class Follow : uint32_t { newest = 0, each = 1 };

struct Piece {
  Bits bits;
  size_t bytes = 0;
};

/// A version on its way to a reader: all bits, or the deltas that lead from its version to this one, in order.
struct Answer {
  uint64_t version = 0;
  Digest digest{};
  uint64_t published_unix_ns = 0;
  bool is_delta = false;
  std::vector<Piece> pieces;

  size_t bytes() const;
};

struct StoreStats {
  uint64_t published = 0;   ///< versions
  uint64_t superseded = 0;  ///< versions that were never encoded: newer ones arrived too quickly
  std::optional<Have> newest;
  uint64_t kept = 0;              ///< versions that a reader can continue from
  uint64_t last_delta_bytes = 0;  ///< 0: the newest version has no predecessor
  uint64_t kept_delta_bytes = 0;
  double last_encode_s = 0.0;
};

/// The last `keep` versions of a model: the bits of the newest one, and the delta between each two neighbors.
/// Invariants  1. Numbers increase. 2. Each kept version but the oldest has the delta from its predecessor. 3. At most
///             `keep` versions wait for the encoder; a further one drops the oldest of them.
/// Threads  Any. One thread calls encode_next().
class VersionStore {
 public:
  VersionStore(Model model, uint32_t keep);
  VersionStore(const VersionStore&) = delete;
  VersionStore& operator=(const VersionStore&) = delete;

  const Model& model() const { return model_; }

  /// Memory for the bits of a version. Errors  RESOURCE_EXHAUSTED.
  absl::StatusOr<std::shared_ptr<std::byte[]>> new_bits();
  /// Errors  INVALID_ARGUMENT: `version` is not more than the last one.
  absl::Status check_number(uint64_t version) const;
  /// Takes a version over, with the time at which it was published. It waits for no encoder and no reader.
  /// check_number() must have succeeded.
  void add(uint64_t version, uint64_t published_unix_ns, Bits bits);

  /// Takes memory for the first versions in advance, in the thread of the encoder: publish() then does not wait for the
  /// kernel.
  void prepare();
  /// Waits for a version, then makes its delta and its hash. False after stop().
  bool encode_next();
  /// Waits until each version is encoded; returns whether this is so at the deadline.
  bool wait_encoded(TimePoint deadline);
  void stop();

  /// The next version for a reader, or nullopt: it has the newest one, or no version exists.
  /// Where the store does not keep the version of the reader, the answer has all bits of the newest version. The same
  /// holds for Follow::newest where the deltas are longer than all bits.
  std::optional<Answer> answer_for(const std::optional<Have>& have, Follow follow) const;
  StoreStats stats() const;

 private:
  /// Memory of dropped versions, for new ones: fresh pages cost as much time as the copy.
  struct Spare;
  struct Version {
    uint64_t number = 0;
    uint64_t published_unix_ns = 0;
    Bits bits;  ///< bits of a pending version and of the newest one
    Digest digest{};
    Piece delta;  ///< delta from the predecessor; null: there is none
  };

  /// Completes `next`: the delta from `last`, and the hash. Without the lock: it reads immutable bits only.
  void encode(const Version* last, Version& next);

  const Model model_;
  const uint32_t keep_;
  const std::shared_ptr<Spare> spare_;  ///< shared: bits return to it after the end of the store
  std::vector<Digest> chunks_;          ///< encoder thread: of the newest version

  mutable Mutex mutex_;
  ConditionVariable changed_;
  std::deque<Version> pending_ ABSL_GUARDED_BY(mutex_);
  std::deque<Version> kept_ ABSL_GUARDED_BY(mutex_);
  bool encoding_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<uint64_t> last_number_ ABSL_GUARDED_BY(mutex_);
  uint64_t published_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t superseded_ ABSL_GUARDED_BY(mutex_) = 0;
  double last_encode_s_ ABSL_GUARDED_BY(mutex_) = 0.0;
};

}  // namespace gradrail::publish
