// Figures of a recorded run, and the request for a run that rank 0 sends to the other ranks.
#include <exception>

#include "base/check.h"
#include "bench/cluster/load_json.h"
#include "bench/report/figure.h"
#include "nlohmann/json.hpp"
#include "tests/fuzz/fuzz.h"

namespace gradrail::bench {
namespace {

using nlohmann::json;

void try_figure(const json& text) {
  try {
    const json written = to_json(figure_from(text));
    GRADRAIL_CHECK(to_json(figure_from(written)).dump() == written.dump());
  } catch (const json::exception&) {  // the only one: callers catch no other
  }
}

void try_load(const json& text) {
  try {
    const json written = to_json(load_from(text));
    GRADRAIL_CHECK(to_json(load_from(written)).dump() == written.dump());
  } catch (const std::exception&) {  // as the coordinator of the ranks does
  }
}

}  // namespace
}  // namespace gradrail::bench

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const nlohmann::json text = nlohmann::json::parse(gradrail::fuzz::text_of(data, bytes), nullptr, false);
  if (text.is_discarded()) return 0;
  gradrail::bench::try_figure(text);
  gradrail::bench::try_load(text);
  return 0;
}
