#include "base/check.h"
#include "tests/fuzz/fuzz.h"
#include "worker/data/dataset.h"
#include "worker/data/packed_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace gradrail::worker;
  static gradrail::fuzz::MemoryFile file;
  file.assign(gradrail::fuzz::text_of(data, bytes));
  const absl::StatusOr<IdxArray> array = read_idx(file.path());
  if (!array.ok()) {
    gradrail::fuzz::check_refusal(array.status(), absl::StatusCode::kDataLoss, file.path());
    return 0;
  }
  // As a double, which does not wrap around.
  double elements = 1;
  for (const uint32_t size : array->shape) elements *= size;
  GRADRAIL_CHECK(!array->shape.empty() && elements == static_cast<double>(array->values.size()));
  GRADRAIL_CHECK(array->values.size() <= bytes * kMaxDeflateRatio);
  return 0;
}
