#include "transport/registration.h"

#include "base/status.h"
#include "fmt/format.h"

namespace gradrail {

std::string RegistrationBudget::text() const {
  return fmt::format("{} regions, {} KiB, {:.2f} ms", regions, (bytes + 1023) / 1024,
                     std::chrono::duration<double, std::milli>(time).count());
}

namespace transport {

absl::StatusOr<std::unique_ptr<MemoryRegion>> register_on(RegistrationBudget& budget, Context& context,
                                                          MemorySpan memory, Access access) {
  const TimePoint start = Clock::now();
  absl::StatusOr<std::unique_ptr<MemoryRegion>> region = context.register_memory(memory, access);
  if (!region.ok()) return region;
  ++budget.regions;
  budget.bytes += memory.bytes;
  budget.time += Clock::now() - start;
  return region;
}

absl::StatusOr<RegisteredMemory> make_registered(RegistrationBudget& budget, Context& context, const std::string& name,
                                                 size_t bytes, Access access, const MemoryBinder& place) {
  GRADRAIL_ASSIGN_OR_RETURN(SharedMemory memory, SharedMemory::create(name, bytes));
  if (place) place(memory.span());
  GRADRAIL_ASSIGN_OR_RETURN(std::unique_ptr<MemoryRegion> region, register_on(budget, context, memory.span(), access));
  return RegisteredMemory{std::move(memory), std::move(region)};
}

}  // namespace transport
}  // namespace gradrail
