#pragma once

#include <string>
#include <vector>

#include "gradrail/clock.h"
#include "ps/protocol/control.pb.h"

namespace gradrail::tools {

/// The answer of one ps task, or the reason for none. Only silence and refused connections can end by themselves:
/// other errors, such as a wrong secret, are final.
struct PsAnswer {
  std::string address;
  std::string unreachable;  ///< "": it answered
  bool is_final = false;    ///< a further request would not help
  ps::proto::StatsReply stats;
  TimePoint at;
};

/// The table of `gradrail top`, a line each: a heading, the ps tasks, the workers. `before`: the answers of an earlier
/// time, for the rates of ps tasks; may be empty.
/// A worker is called slow where it exchanges at less than half the pace of the one in the middle.
std::vector<std::string> top_table(const std::vector<PsAnswer>& answers, const std::vector<PsAnswer>& before);

}  // namespace gradrail::tools
