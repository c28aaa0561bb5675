#pragma once

#include "bench/suites/exchange_run.h"
#include "nlohmann/json_fwd.hpp"

namespace gradrail::bench {

/// All of a load but its processes: every process of a run needs it.
nlohmann::json to_json(const ExchangeLoad& load);
/// Errors: nlohmann's exceptions, for the reader of another process's text; also for a value outside of its range.
ExchangeLoad load_from(const nlohmann::json& json);

}  // namespace gradrail::bench
