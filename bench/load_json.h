#pragma once

#include "bench/exchange_run.h"
#include "nlohmann/json_fwd.hpp"

namespace gradrail::bench {

/// All of a load but who takes part in it and where they listen: what every process of a run has to know.
nlohmann::json to_json(const ExchangeLoad& load);
/// Errors: nlohmann's exceptions, for whoever reads what another process wrote.
ExchangeLoad load_from(const nlohmann::json& json);

}  // namespace gradrail::bench
