#pragma once

#include <string>
#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "gtest/gtest.h"
#include "ps/shard/shard_protocol.h"
#include "tests/ps/shard/lone_push.h"

namespace gradrail::ps {

inline constexpr uint64_t kFirstIncarnation = 100;
inline constexpr uint64_t kSecondIncarnation = 200;
inline constexpr uint64_t kThirdIncarnation = 300;

/// "apply b0 v1 by 0,1", "answer w1 b0 s1 v1 stale 0", "init b0 by 0", "refuse w1 b0 s2", "window b0 s1".
inline std::string describe(const Action& action) {
  const std::string by = fmt::format("{}", fmt::join(action.contributors, ","));
  switch (action.kind) {
    case Action::Kind::initialise:
      return fmt::format("init b{} by {}", action.bucket, by);
    case Action::Kind::apply:
      return fmt::format("apply b{} v{} by {}", action.bucket, action.version, by);
    case Action::Kind::answer:
      return fmt::format("answer w{} b{} s{} v{} stale {}{}", action.worker, action.bucket, action.step, action.version,
                         action.staleness, action.dropped ? " dropped" : "");
    case Action::Kind::refuse:
      return fmt::format("refuse w{} b{} s{}", action.worker, action.bucket, action.step);
    case Action::Kind::begin_window:
      return fmt::format("window b{} s{}", action.bucket, action.step);
  }
  return "?";
}

/// A protocol and the words to drive it. Base version defaults to what a sync worker computes on: the step before.
class Driver {
 public:
  Driver(Mode mode, uint32_t buckets, bool initialised = true, uint64_t version = 0)
      : protocol(mode, buckets, initialised, version) {}

  std::vector<std::string> arrive(const Arrival& arrival) {
    ShardProtocol other = protocol;
    actions.clear();
    protocol.on_arrival(arrival, actions);
    if (arrival.kind != ArrivalKind::push) return words();
    if (const auto lone = other.on_lone_push(arrival); lone.has_value()) {
      EXPECT_TRUE(are_of_lone_push(actions, arrival, *lone));
      protocol = other;  // the calls that follow show whether its state is right
      ++lone_pushes;
    }
    return words();
  }
  std::vector<std::string> push(WorkerIndex worker, uint64_t step, uint32_t bucket = 0,
                                uint64_t incarnation = kFirstIncarnation) {
    return arrive({worker, incarnation, ArrivalKind::push, bucket, step, step - 1});
  }
  std::vector<std::string> absent(WorkerIndex worker, uint64_t step, uint32_t bucket = 0) {
    return arrive({worker, kFirstIncarnation, ArrivalKind::absent, bucket, step, step - 1});
  }
  std::vector<std::string> pull(WorkerIndex worker, uint64_t step = 0, uint32_t bucket = 0,
                                uint64_t incarnation = kFirstIncarnation) {
    return arrive({worker, incarnation, ArrivalKind::pull, bucket, step, 0});
  }
  std::vector<std::string> initialise(WorkerIndex worker, uint32_t bucket = 0) {
    return arrive({worker, kFirstIncarnation, ArrivalKind::initialise, bucket, 0, 0});
  }
  std::vector<std::string> remove(WorkerIndex worker, uint64_t incarnation = kFirstIncarnation) {
    actions.clear();
    protocol.remove_worker(worker, incarnation, actions);
    return words();
  }
  std::vector<std::string> mark_finished(WorkerIndex worker, uint64_t incarnation = kFirstIncarnation) {
    actions.clear();
    protocol.mark_worker_finished(worker, incarnation, actions);
    return words();
  }
  std::vector<std::string> end_window(uint64_t step, uint32_t bucket = 0) {
    actions.clear();
    protocol.on_window_end(bucket, step, actions);
    return words();
  }
  std::string reason() const { return actions.empty() ? "" : actions.front().reason; }

  ShardProtocol protocol;
  Actions actions;
  int lone_pushes = 0;  ///< number of arrivals that on_lone_push() has taken

 private:
  std::vector<std::string> words() const {
    std::vector<std::string> result;
    for (const Action& action : actions) result.push_back(describe(action));
    return result;
  }
};

}  // namespace gradrail::ps
