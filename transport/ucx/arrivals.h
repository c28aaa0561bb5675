#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "base/check.h"
#include "transport/ucx/wire.h"

namespace gradrail::transport::ucx {

class PutReceiver;
class Region;

/// A put on its way into its region.
struct Arrival {
  enum class State : uint8_t {
    waiting,  ///< waiting for an earlier put to the same place
    moving,   ///< UCX writes to the target
    moved,    ///< all bytes are there; a check that the sender was still connected is pending
    done
  };
  PutReceiver* receiver = nullptr;
  const Region* region = nullptr;
  std::byte* target = nullptr;
  size_t bytes = 0;
  uint64_t immediate = 0;
  bool notify = false;
  bool rendezvous = false;
  State state = State::done;
  void* held = nullptr;               ///< UCX's descriptor of a waiting put, ours to release
  std::unique_ptr<std::byte[]> copy;  ///< copy of its bytes, if UCX does not leave them to us

  bool writes() const { return state == State::waiting || state == State::moving; }
};

/// The puts of one connection that have arrived and are not announced yet, oldest first. Bulk data arrives by
/// rendezvous and may take longer. Later puts continue beside it unless they touch the same bytes, and notices keep the
/// order.
/// Bound  The sender has at most kPutWindow puts in flight beyond its oldest unfinished put. Puts reported to it as
///        done stay here until the end of one turn of progress.
class Arrivals {
 public:
  bool empty() const { return arrivals_.empty(); }
  Arrival& front() { return arrivals_.front(); }
  void pop() {
    GRADRAIL_CHECK(!empty() && front().state == Arrival::State::done);  // UCX may write to any other
    arrivals_.pop_front();
  }
  /// Appends the youngest put; its address stays. Null: the sender exceeds the bound.
  Arrival* push();

  /// Whether an older put has yet to write where this one will.
  bool must_wait(const Arrival& arrival) const;

  template <typename Visit>
  void for_each(const Visit& visit) {
    for (Arrival& each : arrivals_) visit(each);
  }

  /// The oldest that waits and need not any more; null when there is none.
  Arrival* next_to_start();

 private:
  std::deque<Arrival> arrivals_;
};

}  // namespace gradrail::transport::ucx
