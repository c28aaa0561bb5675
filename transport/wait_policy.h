#pragma once

#include "base/clock.h"

namespace gradrail::transport {

/// How long to spin before blocking. Zero where there are fewer cores than runnable threads: a spinning thread there
/// only delays the peer's answer.
struct WaitPolicy {
  Duration spin = Duration::zero();
};

}  // namespace gradrail::transport
