#include "tools/monitor/chrome_trace.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <tuple>

#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "ps/protocol/trace_marks.h"

namespace gradrail::tools {
namespace {

using nlohmann::json;
using Kind = Mark::Kind;

constexpr size_t kKinds = static_cast<size_t>(Kind::applied) + 1;
using Moments = std::array<int64_t, kKinds>;  ///< 0: not marked

/// A stretch between two marks.
struct Stage {
  const char* name;
  Kind from, to;
};
// "post" begins at "pushed" for host memory and at "copied" for GPU memory (add_stages()).
constexpr std::array<Stage, 6> kStages = {{{"pack or copy", Kind::pushed, Kind::copied},
                                           {"post", Kind::pushed, Kind::posted},
                                           {"wire and ps", Kind::posted, Kind::answered},
                                           {"arrival seen", Kind::noticed, Kind::taken},
                                           {"wait for peers", Kind::taken, Kind::applying},
                                           {"sum + optimizer", Kind::applying, Kind::applied}}};

/// Events of one task. Times in the file are microseconds since the first mark of all tasks.
class TaskEvents {
 public:
  TaskEvents(const TaskTrace& trace, int process, int64_t start_ns, json& events)
      : trace_(trace), process_(process), start_ns_(start_ns), events_(events) {
    name("process_name", 0, trace.task);
  }

  void add() {
    add_exchanges();
    for (const Mark& mark : trace_.marks) {
      if (mark.kind == Kind::begun || mark.kind == Kind::done) continue;
      // Marks of one row are sorted by time. The key has the worker: a ps serves several at the same time.
      Round& round = under_way_[{mark.shard, mark.worker, mark.bucket}];
      // The number of a step occurs twice if parameters are fetched once more after it.
      if (mark.kind == Kind::pushed || mark.kind == Kind::noticed || mark.step != round.step) finish(mark, round);
      round.moments[static_cast<size_t>(mark.kind)] = mark.at_ns;
    }
    // The last step has no successor that would finish it.
    for (const auto& [row, round] : under_way_) add_stages(round.step, row, round.moments);
  }

 private:
  using Row = std::tuple<uint32_t, uint32_t, uint32_t>;  ///< shard, worker, bucket
  struct Round {
    uint64_t step = 0;
    Moments moments{};
  };

  void finish(const Mark& next, Round& round) {
    add_stages(round.step, {next.shard, next.worker, next.bucket}, round.moments);
    round = {.step = next.step};
  }

  // Names a process or a row: "M" in Chrome's format does this, and "X" is an event with a duration.
  void name(const char* what, int row, const std::string& text) {
    events_.push_back({{"ph", "M"}, {"name", what}, {"pid", process_}, {"tid", row}, {"args", {{"name", text}}}});
  }

  void add_event(const char* what, int row, uint64_t step, int64_t from, int64_t to) {
    // A negative duration is no valid event of the format.
    events_.push_back({{"ph", "X"},
                       {"name", what},
                       {"pid", process_},
                       {"tid", row},
                       {"ts", static_cast<double>(from - start_ns_) * 1e-3},
                       {"dur", static_cast<double>(std::max<int64_t>(0, to - from)) * 1e-3},
                       {"args", {{"step", step}}}});
  }

  /// A worker's steps as a whole, in its first row.
  void add_exchanges() {
    int64_t begun = 0, done = 0;
    for (const Mark& mark : trace_.marks) {
      if (mark.kind == Kind::begun) {
        // A worker computes between two exchanges.
        if (done != 0) add_event("compute", row_of_steps(), mark.step, done, mark.at_ns);
        begun = mark.at_ns;
      } else if (mark.kind == Kind::done) {
        if (begun != 0) add_event("exchange", row_of_steps(), mark.step, begun, mark.at_ns);
        begun = 0;
        done = mark.at_ns;
      }
    }
  }

  // A step that lost a mark to the ring of the recorder still shows the stages that are complete.
  void add_stages(uint64_t step, const Row& row, const Moments& moments) {
    const auto at = [&](Kind kind) { return moments[static_cast<size_t>(kind)]; };
    for (const Stage& stage : kStages) {
      // A staged bucket is posted once it has been copied.
      const Kind from = stage.to == Kind::posted && at(Kind::copied) != 0 ? Kind::copied : stage.from;
      if (at(from) != 0 && at(stage.to) != 0) add_event(stage.name, number_of(row), step, at(from), at(stage.to));
    }
  }

  int row_of_steps() {
    if (!has_steps_) name("thread_name", 0, "steps");
    has_steps_ = true;
    return 0;
  }

  int number_of(const Row& row) {
    const auto [found, added] = rows_.try_emplace(row, static_cast<int>(rows_.size()) + 1);
    const auto& [shard, worker, bucket] = row;
    // A ps has rows for each worker; a worker has its own buckets only.
    if (added) {
      name("thread_name", found->second,
           trace_.task.starts_with("ps/") ? fmt::format("shard {}: bucket {} of worker {}", shard, bucket, worker)
                                          : fmt::format("shard {}: bucket {}", shard, bucket));
    }
    return found->second;
  }

  const TaskTrace& trace_;
  const int process_;
  const int64_t start_ns_;
  json& events_;
  std::map<Row, Round> under_way_;
  std::map<Row, int> rows_;
  bool has_steps_ = false;
};

}  // namespace

std::string chrome_trace(const std::vector<TaskTrace>& tasks) {
  int64_t start_ns = INT64_MAX;
  for (const TaskTrace& task : tasks)
    for (const Mark& mark : task.marks) start_ns = std::min(start_ns, mark.at_ns);
  json events = json::array();
  json bounds = json::object();
  int process = 0;
  for (const TaskTrace& task : tasks) {
    // The process number of the trace is the order of the tasks, not that of the operating system.
    TaskEvents(task, ++process, start_ns, events).add();
    if (task.bound_ns >= ps::kMaxTraceTime) {
      bounds[task.task] = nullptr;  // the clocks were not compared: the run was too short
    } else {
      bounds[task.task] = static_cast<double>(task.bound_ns) * 1e-3;
    }
  }
  const json whole = {{"traceEvents", std::move(events)},
                      {"displayTimeUnit", "ms"},
                      {"metadata",
                       {{"clock",
                         "of ps/0; another task's times may be off by clock_error_bound_us, which is less on "
                         "one host, where all clocks are one"},
                        {"clock_error_bound_us", std::move(bounds)}}}};
  return whole.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace gradrail::tools
