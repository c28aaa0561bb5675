#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/check.h"
#include "transport/completion.h"

namespace gradrail::transport::common {

/// The completions that wait for poll(). An attachment owns the memory of Completion::message. It stays until the next
/// poll, when the caller has read the message.
template <typename Attachment>
class CompletionQueue {
 public:
  void push(Completion completion, Attachment attachment = {}) {
    waiting_.push_back({std::move(completion), std::move(attachment)});
  }
  bool empty() const { return next_ == waiting_.size(); }
  size_t size() const { return waiting_.size() - next_; }

  /// Moves up to out.size() completions, the oldest first.
  size_t take(absl::Span<Completion> out) {
    size_t count = 0;
    for (; count < out.size() && next_ < waiting_.size(); ++next_) {
      Waiting& oldest = waiting_[next_];
      out[count++] = std::move(oldest.completion);
      if (oldest.attachment) delivered_.push_back(std::move(oldest.attachment));
    }
    // A caller that never empties the queue must not make it grow.
    if (next_ == waiting_.size() || next_ >= kMaxTaken) drop_taken();
    return count;
  }

  /// Releases the attachments of the last take().
  template <typename Release>
  void release_delivered(const Release& release) {
    for (Attachment& each : delivered_) release(std::move(each));
    delivered_.clear();
  }
  std::vector<Attachment>& delivered() { return delivered_; }

  /// Drops the completions of a connection that is closed.
  void forget(const Connection* connection) {
    drop_taken();
    std::erase_if(waiting_, [&](const Waiting& each) { return each.completion.connection == connection; });
  }
  void clear() {
    waiting_.clear();
    next_ = 0;
  }

 private:
  struct Waiting {
    Completion completion;
    Attachment attachment;
  };
  static constexpr size_t kMaxTaken = 256;  ///< completions of one poll of a usual caller

  void drop_taken() {
    GRADRAIL_CHECK(next_ <= waiting_.size());
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<ptrdiff_t>(next_));
    next_ = 0;
  }

  std::vector<Waiting> waiting_;  ///< waiting events are those from next_ on
  size_t next_ = 0;
  std::vector<Attachment> delivered_;
};

}  // namespace gradrail::transport::common
