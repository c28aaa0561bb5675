#include "bench/suites/layer_list.h"

#include <cmath>

#include "base/check.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace gradrail::bench;
  static gradrail::fuzz::MemoryFile file;
  file.assign(gradrail::fuzz::text_of(data, bytes));
  const absl::StatusOr<LayerList> list = read_layer_list(file.path());
  if (!list.ok()) {
    gradrail::fuzz::check_refusal(list.status(), absl::StatusCode::kDataLoss, file.path());
    return 0;
  }
  GRADRAIL_CHECK(!list->layers.empty() && list->bytes() > 0);
  double before = 0;
  for (const ExchangeLoad::Layer& layer : list->layers) {
    GRADRAIL_CHECK(layer.elements > 0 && std::isfinite(layer.ready_us) && layer.ready_us >= before);
    before = layer.ready_us;
  }
  return 0;
}
