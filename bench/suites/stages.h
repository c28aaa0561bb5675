#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/flight_recorder.h"
#include "nlohmann/json_fwd.hpp"

namespace gradrail::bench {

/// Where the time of an exchange goes: name and microseconds, in the order in which they follow each other. Together
/// they are the time of the exchange. They follow the bucket with the last answer, since the exchange ends with it.
/// They are means over the fifth of all exchanges around the median. Empty where marks of the two ends do not meet.
/// `backward`: gradients become ready one after the other, and waiting for them is a stage of its own.
std::vector<std::pair<std::string, double>> stages_of(const std::vector<Mark>& workers, const std::vector<Mark>& shards,
                                                      bool backward);

/// For the pipe between two processes of a run: arrays of six numbers, since a run has tens of thousands of marks.
/// Errors  marks_from(): exceptions of nlohmann where another process sent something else.
nlohmann::json to_json(const std::vector<Mark>& marks);
std::vector<Mark> marks_from(const nlohmann::json& json);

}  // namespace gradrail::bench
