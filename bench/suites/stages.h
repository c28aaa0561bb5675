#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/flight_recorder.h"
#include "nlohmann/json_fwd.hpp"

namespace gradrail::bench {

/// Stages of the time of an exchange: name and microseconds, in their order. Together they are the time of the
/// exchange. They follow the bucket with the last answer, since the exchange ends with it. They are means over the
/// fifth of all exchanges around the median. Empty if marks of the two ends do not match. `backward`: gradients become
/// ready one after the other, and the wait for them is a separate stage.
std::vector<std::pair<std::string, double>> stages_of(const std::vector<Mark>& workers, const std::vector<Mark>& shards,
                                                      bool backward);

/// Writes marks for the pipe between two processes of a run: arrays of six numbers, since a run has tens of thousands
/// of marks.
/// Errors  marks_from(): exceptions of nlohmann if another process sent other data.
nlohmann::json to_json(const std::vector<Mark>& marks);
std::vector<Mark> marks_from(const nlohmann::json& json);

}  // namespace gradrail::bench
