#pragma once

#include "absl/status/status.h"
#include "tests/gpu/simulated/control.h"

namespace gradrail::gpu {

/// The control interface of the simulated driver; not available where the driver of this process is a real one.
class Simulation {
 public:
  static bool is_here();
  /// As with these words in GRADRAIL_SIMULATED_GPU. To be called while nothing runs.
  static void configure(const char* words);
  /// Lets a device that hangs come to an end, so that the test's process can.
  static void release_hang();
  /// The same behind the launch that hangs: until it runs, nothing does.
  static void release_hang_when_reached();
  static bool hangs();
  /// Objects that were made on devices and not freed.
  static SimulatedObjects objects();
  /// Whether a test may skip because of this: there is no GPU, or not that many, and GRADRAIL_REQUIRE does not name
  /// gpu.
  static bool tolerates(const absl::Status& no_device);
};

/// For tests with faults that only the simulated driver has.
#define GRADRAIL_NEEDS_SIMULATION() \
  if (!::gradrail::gpu::Simulation::is_here()) GTEST_SKIP() << "needs the simulated driver"

}  // namespace gradrail::gpu
