#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "transport/context.h"

namespace gradrail::transport {

/// What registering memory has cost so far: pinning a page takes time, and how much may be pinned is limited.
struct RegistrationBudget {
  uint32_t regions = 0;
  uint64_t bytes = 0;
  Duration time = Duration::zero();

  /// For people: "4 regions, 636 KiB, 1.24 ms".
  std::string text() const;
};

/// context.register_memory(), put on the bill.
absl::StatusOr<std::unique_ptr<MemoryRegion>> register_on(RegistrationBudget& budget, Context& context,
                                                          MemorySpan memory, Access access);

/// Memory of our own with its registration, which ends first.
struct RegisteredMemory {
  SharedMemory memory;
  std::unique_ptr<MemoryRegion> region;
};
/// `place` is told in between: registering may touch every page.
absl::StatusOr<RegisteredMemory> make_registered(RegistrationBudget& budget, Context& context, const std::string& name,
                                                 size_t bytes, Access access, const MemoryPlacer& place = nullptr);

}  // namespace gradrail::transport
