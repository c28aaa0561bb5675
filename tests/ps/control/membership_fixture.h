#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "ps/control/membership.h"

namespace gradrail::ps {

/// Three workers. Worker N joins with incarnation 100 + N at the time 0.
class MembershipTest : public ::testing::Test {
 protected:
  static TimePoint at(Duration time) { return TimePoint() + time; }
  void join(WorkerIndex worker) {
    const absl::Status joined = membership_.join(worker, 100 + worker, "host:" + std::to_string(worker), TimePoint());
    ASSERT_TRUE(joined.ok()) << joined;
  }

  Membership membership_{
      {.worker_names = {"host:0", "host:1", "host:2"}, .heartbeat_timeout = std::chrono::seconds(10)}};
};

}  // namespace gradrail::ps
