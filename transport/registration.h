#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "gradrail/registration_budget.h"
#include "transport/context.h"

namespace gradrail::transport {

/// context.register_memory(), put on the bill.
absl::StatusOr<std::unique_ptr<MemoryRegion>> register_on(RegistrationBudget& budget, Context& context,
                                                          MemorySpan memory, Access access);

/// Memory of our own with its registration, which ends first.
struct RegisteredMemory {
  SharedMemory memory;
  std::unique_ptr<MemoryRegion> region;
};
/// `place` runs in between, because registering may touch every page.
absl::StatusOr<RegisteredMemory> make_registered(RegistrationBudget& budget, Context& context, const std::string& name,
                                                 size_t bytes, Access access, const MemoryBinder& place = nullptr);

}  // namespace gradrail::transport
