#include "transport/ucx/arrivals.h"

#include <algorithm>

namespace gradrail::transport::ucx {

Arrival* Arrivals::push() {
  if (arrivals_.size() >= kPutWindow) {
    // Puts that are done to the sender stay here until the end of the turn, so the bound counts from the oldest
    // unfinished one.
    const auto oldest =
        std::find_if(arrivals_.begin(), arrivals_.end(), [](const Arrival& each) { return each.writes(); });
    if (arrivals_.end() - oldest >= static_cast<ptrdiff_t>(kPutWindow)) return nullptr;
  }
  return &arrivals_.emplace_back();
}

bool Arrivals::must_wait(const Arrival& arrival) const {
  for (const Arrival& older : arrivals_) {
    if (&older == &arrival) return false;
    const bool apart = older.target + older.bytes <= arrival.target || arrival.target + arrival.bytes <= older.target;
    if (older.writes() && !apart) return true;
  }
  return false;
}

Arrival* Arrivals::next_to_start() {
  const auto ready = std::find_if(arrivals_.begin(), arrivals_.end(), [&](const Arrival& each) {
    return each.state == Arrival::State::waiting && !must_wait(each);
  });
  return ready == arrivals_.end() ? nullptr : &*ready;
}

}  // namespace gradrail::transport::ucx
