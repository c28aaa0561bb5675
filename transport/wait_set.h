#pragma once

#include <poll.h>

#include <atomic>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gradrail/clock.h"
#include "gradrail/wait_policy.h"
#include "transport/context.h"

namespace gradrail::transport {

/// Waits on several contexts of one owner thread.
/// Threads  wake(): any thread. The rest: owner thread.
class WaitSet {
 public:
  explicit WaitSet(WaitPolicy policy);
  /// Call it once before the first wait.
  /// Errors  RESOURCE_EXHAUSTED: the kernel refused the descriptor for wake().
  absl::Status check() const;
  ~WaitSet();
  WaitSet(const WaitSet&) = delete;
  WaitSet& operator=(const WaitSet&) = delete;

  /// The context must outlive this set.
  void add(Context* context);
  void remove(Context* context);

  /// Polls, spins according to the policy, then blocks. Returns the number of completions, all from one context; 0 at the
  /// deadline or after wake().
  size_t wait(absl::Span<Completion> out, TimePoint deadline);

  /// Polls all contexts once; never blocks.
  size_t poll(absl::Span<Completion> out);

  /// The polls of a spin before its first look at the clock; a single one if wait() would not spin. Call it before
  /// wait() where events usually follow at once.
  size_t poll_briefly(absl::Span<Completion> out);

  /// Index of the context (in order of add) of the last completions.
  size_t source_index() const { return next_; }

  /// Makes a wait in progress, or the next one, return.
  void wake();

  WaitPolicy policy() const { return policy_; }

 private:
  size_t poll_often(absl::Span<Completion> out);
  /// Returns the result of wait(), or nothing if the spin was in vain.
  std::optional<size_t> spin(absl::Span<Completion> out, TimePoint deadline);
  bool arm_all();
  bool block(TimePoint deadline);  ///< whether wake() ended it

  WaitPolicy policy_;
  uint32_t misses_ = 0;      ///< spins in vain; a completion halves it
  uint32_t unspinning_ = 0;  ///< waits that block immediately, before the next spin
  std::vector<Context*> contexts_;
  size_t next_ = 0;                  ///< round robin: no context starves another
  std::atomic<bool> woken_ = false;  ///< any thread; the descriptor serves a blocked thread, this a spinning one
  int wake_fd_ = -1;
  int wake_error_ = 0;       ///< errno of the call that made it
  std::vector<pollfd> fds_;  ///< the wake-up's, then one for each context
};

}  // namespace gradrail::transport
