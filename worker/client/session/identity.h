#pragma once

#include <cstdint>

namespace gradrail::ps::proto {
class Member;
}

namespace gradrail::worker {

/// This worker as a member of the run. Servers treat a new incarnation of the same task as another member. It counts
/// its steps from the start; pushes of the former incarnation are no longer applied.
class Identity {
 public:
  explicit Identity(uint32_t task_index) : task_index_(task_index) { renew(); }

  /// Draws another incarnation, before this worker joins again.
  void renew();

  uint32_t task_index() const { return task_index_; }
  uint64_t incarnation() const { return incarnation_; }
  ps::proto::Member member() const;

 private:
  const uint32_t task_index_;
  uint64_t incarnation_ = 0;  ///< never 0 after construction: 0 in a header means that no incarnation is given
};

}  // namespace gradrail::worker
