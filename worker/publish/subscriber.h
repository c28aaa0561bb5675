#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gradrail/clock.h"
#include "worker/publish/digest.h"
#include "worker/publish/publisher_link.h"

namespace gradrail::publish {

struct SubscriberOptions {
  std::string address;    ///< "host:port"
  std::string secret;     ///< "": none
  bool insecure = false;  ///< allows an address beyond this host without a secret
  Follow follow = Follow::newest;
  double silence_timeout_s = 30.0;  ///< a publisher that sends nothing for so long is lost
};

struct SubscriberStats {
  uint64_t full_count = 0;
  uint64_t full_bytes = 0;
  uint64_t delta_count = 0;
  uint64_t delta_bytes = 0;
  uint64_t connections = 0;
  uint64_t hash_failures = 0;
  double last_lag_s = 0.0;     ///< time from publish() to the verified version, by the clocks of both hosts
  double last_verify_s = 0.0;  ///< decoding and hashing after the last byte
};

/// Follows the versions of a publisher. It has no thread: next() does all the work.
/// Invariants  1. bits() keeps its address. 2. Bits change only in a next() that has received a whole version. 3. With
///             have(), the bits have its hash.
/// Threads     One at a time.
class Subscriber {
 public:
  /// Errors  INVALID_ARGUMENT, FAILED_PRECONDITION: options.
  static absl::StatusOr<std::unique_ptr<Subscriber>> open(SubscriberOptions options);

  /// Waits until the publisher has sent names and shapes. It repeats connections with growing pauses.
  /// Errors  This function and next() have the same. DEADLINE_EXCEEDED names the last cause; call again. ABORTED: the
  ///         publisher has ended; a further call waits for its next start. FAILED_PRECONDITION: another secret, or a
  ///         restarted publisher has other tensors. DATA_LOSS: a version has a wrong hash twice. RESOURCE_EXHAUSTED.
  absl::Status connect(TimePoint deadline);

  /// The model of the publisher; valid after connect().
  const Model& model() const { return *model_; }
  /// The bits of have(); null before connect().
  const std::byte* bits() const { return bits_.get(); }
  /// The version that is in place; nullopt: none yet, or a version had a wrong hash.
  const std::optional<Have>& have() const { return have_; }
  /// Identifies the process of the publisher; another number after its restart.
  uint64_t run() const { return run_; }
  const SubscriberStats& stats() const { return stats_; }

  /// Declares that these are the parameters of `version`, as after a restart of the reader. After connect().
  void resume(uint64_t version, absl::Span<const float* const> arrays);

  /// Waits for the next version and puts it in place. A restarted publisher may have lower version numbers.
  absl::Status next(TimePoint deadline);

 private:
  explicit Subscriber(SubscriberOptions options) : options_(std::move(options)) {}

  /// Runs `attempt` over a connection, and connects again after a loss.
  template <typename Attempt>
  absl::Status retry(TimePoint deadline, Attempt attempt);
  absl::Status ensure_connected(TimePoint deadline);
  absl::Status accept_model(const Welcome& welcome);
  absl::Status receive(TimePoint deadline);
  /// Begins a body: checks its size and finds memory.
  absl::Status begin_body(const VersionHeader& header);
  absl::Status read_body(TimePoint deadline);
  absl::Status finish_body();
  absl::Status apply_deltas();
  void drop_link();

  const SubscriberOptions options_;
  std::unique_ptr<PublisherLink> link_;
  bool greeted_ = false;
  TimePoint retry_at_ = Clock::now();
  Duration pause_ = Duration::zero();
  std::string last_loss_;

  std::optional<Model> model_;
  uint64_t run_ = 0;
  std::unique_ptr<std::byte[]> bits_;
  std::optional<Have> have_;
  std::vector<Digest> chunks_;  ///< digests of the chunks of bits_

  // The version under way.
  std::optional<VersionHeader> header_;
  std::unique_ptr<std::byte[]> incoming_;  ///< null: the body is written to bits_, which have no valid version
  size_t body_read_ = 0;
  std::vector<Digest> incoming_chunks_;
  bool failed_hash_ = false;  ///< the last version had a wrong hash

  SubscriberStats stats_;
};

}  // namespace gradrail::publish
