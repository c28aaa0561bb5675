// The description of a machine that the child process sends that reads an XML file. The file may have taken it over.
#include "topology/discover/machine_json.h"

#include "base/check.h"
#include "base/status.h"
#include "tests/fuzz/fuzz.h"
#include "tests/topology/sound_machine.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace gradrail::topology;
  const absl::StatusOr<Machine> machine = parse_machine(std::string(gradrail::fuzz::text_of(data, bytes)));
  if (!machine.ok()) {
    gradrail::fuzz::check_refusal(machine.status(), absl::StatusCode::kInvalidArgument, "");
    GRADRAIL_CHECK(!machine.status().message().empty());
    return 0;
  }
  check_sound(*machine);
  const std::string text = write_machine(*machine);
  const absl::StatusOr<Machine> again = parse_machine(text);
  GRADRAIL_CHECK(again.ok() && write_machine(*again) == text);
  return 0;
}
