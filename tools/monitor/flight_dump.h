#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/flight_recorder.h"
#include "gradrail/clock.h"

namespace gradrail::tools {

/// Writes down what flight recorders have, for people: one file a dump,
/// <folder>/gradrail-flight-<job>-<index>-<pid>-<count>.txt. Without a folder: that for temporary files.
/// Threads  One owner.
class FlightDump {
 public:
  FlightDump(std::string folder, std::string task);

  /// The file's path. Errors  name it, the failing call and errno's words.
  absl::StatusOr<std::string> write(const std::vector<Mark>& marks, const std::string& why);

 private:
  const std::string folder_;
  const std::string task_;
  uint32_t count_ = 0;
};

/// The text: a heading, then a line a mark, oldest first, with its age at `now`.
std::string flight_text(std::vector<Mark> marks, const std::string& task, const std::string& why, TimePoint now);

}  // namespace gradrail::tools
