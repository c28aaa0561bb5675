#pragma once

#include <string>

#include "gradrail/client.h"

namespace gradrail::worker {

/// The statistics as a JSON object. Times are in seconds; names are those of ClientStats.
std::string to_json(const ClientStats& stats);

}  // namespace gradrail::worker
