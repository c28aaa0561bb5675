// Descriptions of machines. hwloc builds each one, so that a second has some thousand inputs.
#include "base/check.h"
#include "tests/fuzz/fuzz.h"
#include "tests/topology/sound_machine.h"
#include "topology/discover/discover.h"

// hwloc 2.9 leaks 32 bytes of `(indexes=…)` in some descriptions that it refuses for another reason.
// NOLINTNEXTLINE: the sanitizer's name
extern "C" __attribute__((visibility("default"))) const char* __lsan_default_suppressions() {
  return "leak:libhwloc.so";
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace gradrail::topology;
  // Large machines take seconds in hwloc, and find nothing that small ones do not.
  size_t digits = 0;
  for (size_t i = 0; i < bytes; ++i) {
    digits = data[i] >= '0' && data[i] <= '9' ? digits + 1 : 0;
    if (digits > 2) return 0;
  }
  const absl::StatusOr<Machine> machine = from_synthetic(std::string(gradrail::fuzz::text_of(data, bytes)));
  if (machine.ok()) {
    check_sound(*machine);
  } else {
    gradrail::fuzz::check_refusal(machine.status(), absl::StatusCode::kInvalidArgument, "topology \"");
  }
  return 0;
}
