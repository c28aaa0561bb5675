#include "tools/monitor/chrome_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "nlohmann/json.hpp"
#include "ps/protocol/trace_marks.h"

namespace gradrail::tools {
namespace {

using nlohmann::json;
using Kind = Mark::Kind;

Mark worker_mark(int64_t at_us, Kind kind, uint64_t step = 1) {
  return {.at_ns = at_us * 1000, .step = step, .worker = 3, .shard = 1, .bucket = 2, .kind = kind};
}

/// "task/row/name": when and how long, in microseconds.
std::multimap<std::string, std::pair<double, double>> spans(const json& trace) {
  std::map<int, std::string> tasks;
  std::map<std::pair<int, int>, std::string> rows;
  std::multimap<std::string, std::pair<double, double>> found;
  for (const json& event : trace.at("traceEvents")) {
    const int pid = event.at("pid"), tid = event.at("tid");
    if (event.at("ph") == "M")
      (event.at("name") == "process_name" ? tasks[pid] : rows[{pid, tid}]) = event.at("args").at("name");
  }
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    const int pid = event.at("pid"), tid = event.at("tid");
    found.emplace(tasks.at(pid) + "/" + rows.at({pid, tid}) + "/" + event.at("name").get<std::string>(),
                  std::make_pair(event.at("ts").get<double>(), event.at("dur").get<double>()));
  }
  return found;
}

using Spans = std::multimap<std::string, std::pair<double, double>>;

TEST(Timeline, BothEndsOfAnExchange) {
  const json trace = json::parse(chrome_trace(
      {{.task = "worker/3",
        .marks = {worker_mark(1000, Kind::begun), worker_mark(1010, Kind::pushed), worker_mark(1015, Kind::posted),
                  worker_mark(1060, Kind::answered), worker_mark(1070, Kind::done)},
        .bound_ns = 2500},
       {.task = "ps/0",
        .marks = {worker_mark(1020, Kind::noticed), worker_mark(1021, Kind::taken), worker_mark(1030, Kind::applying),
                  worker_mark(1050, Kind::applied)}},
       {.task = "worker/4", .bound_ns = ps::kMaxTraceTime}}));
  EXPECT_EQ(spans(trace), (Spans{{"worker/3/steps/exchange", {0, 70}},
                                 {"worker/3/shard 1: bucket 2/post", {10, 5}},
                                 {"worker/3/shard 1: bucket 2/wire and ps", {15, 45}},
                                 {"ps/0/shard 1: bucket 2 of worker 3/arrival seen", {20, 1}},
                                 {"ps/0/shard 1: bucket 2 of worker 3/wait for peers", {21, 9}},
                                 {"ps/0/shard 1: bucket 2 of worker 3/sum + optimizer", {30, 20}}}));
  EXPECT_EQ(trace.at("metadata").at("clock_error_bound_us").at("worker/3"), 2.5);
  EXPECT_TRUE(trace.at("metadata").at("clock_error_bound_us").at("worker/4").is_null());
}

TEST(Timeline, AStepThatComesTwiceIsDrawnTwice) {
  const json trace =
      json::parse(chrome_trace({{.task = "ps/0",
                                 .marks = {worker_mark(100, Kind::noticed), worker_mark(105, Kind::taken),
                                           worker_mark(1000, Kind::noticed), worker_mark(1007, Kind::taken)}}}));
  EXPECT_EQ(spans(trace), (Spans{{"ps/0/shard 1: bucket 2 of worker 3/arrival seen", {0, 5}},
                                 {"ps/0/shard 1: bucket 2 of worker 3/arrival seen", {900, 7}}}));
}

TEST(Timeline, WhatTheRingHasLostIsLeftOut) {
  const json trace = json::parse(chrome_trace(
      {{.task = "worker/3",
        .marks = {worker_mark(1, Kind::answered), worker_mark(2, Kind::done), worker_mark(9, Kind::begun, 2)}}}));
  EXPECT_EQ(spans(trace), (Spans{{"worker/3/steps/compute", {1, 7}}}));
}

TEST(Timeline, OfNothing) { EXPECT_TRUE(json::parse(chrome_trace({})).at("traceEvents").empty()); }

}  // namespace
}  // namespace gradrail::tools
