#include "ps/control/worker_reports.h"

#include <gtest/gtest.h>

#include "ps/protocol/control.pb.h"

namespace gradrail::ps {
namespace {

using namespace std::chrono_literals;

proto::WorkerReport report(uint64_t exchanges, const std::string& path = "tcp") {
  proto::WorkerReport result;
  result.set_exchanges(exchanges);
  result.set_path(path);
  return result;
}

TEST(WorkerReports, TheLatestReportOfEachWorkerCountsAndHasAnAge) {
  const TimePoint now = Clock::now();
  WorkerReports reports;
  reports.heard(2, 7, report(1), now - 3s);
  reports.heard(1, 8, report(5), now - 2s);
  reports.heard(2, 7, report(2), now - 1s);
  proto::StatsReply reply;
  reports.add_to(reply, now);
  ASSERT_EQ(reply.workers_size(), 2);
  EXPECT_EQ(reply.workers(0).task_index(), 1u);
  EXPECT_EQ(reply.workers(1).report().exchanges(), 2u);
  EXPECT_NEAR(reply.workers(1).age_s(), 1.0, 1e-6);
}

TEST(WorkerReports, AnEndIsKeptUntilAnotherIncarnationReports) {
  const TimePoint now = Clock::now();
  const auto ended = [&](const WorkerReports& reports) {
    proto::StatsReply reply;
    reports.add_to(reply, now);
    return reply.workers(0).ended();
  };
  WorkerReports reports;
  reports.heard(0, 7, report(1), now);
  reports.ended(0, 6, "an earlier incarnation");
  EXPECT_EQ(ended(reports), "");
  reports.ended(0, 7, "left");
  reports.ended(3, 1, "has never joined");
  EXPECT_EQ(ended(reports), "left");
  reports.heard(0, 9, report(1), now);
  EXPECT_EQ(ended(reports), "");
}

TEST(WorkerReports, LongTextsAreCut) {
  WorkerReports reports;
  reports.heard(0, 7, report(1, std::string(1 << 20, 'x')), Clock::now());
  reports.ended(0, 7, std::string(1 << 20, 'y'));
  proto::StatsReply reply;
  reports.add_to(reply, Clock::now());
  EXPECT_LE(reply.ByteSizeLong(), 1000u);
}

}  // namespace
}  // namespace gradrail::ps
