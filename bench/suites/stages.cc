#include "bench/suites/stages.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "nlohmann/json.hpp"

namespace gradrail::bench {
namespace {

using Kind = Mark::Kind;
// `applied` is the last value of Mark::Kind.
constexpr size_t kKinds = static_cast<size_t>(Kind::applied) + 1;

/// Moments of one bucket in one exchange, of both ends; 0: not marked.
using Moments = std::array<int64_t, kKinds>;
using BucketId = std::pair<uint32_t, uint32_t>;  ///< shard, bucket

struct StagedExchange {
  int64_t begun = 0;
  int64_t done = 0;
  std::map<BucketId, Moments> buckets;
};
using Exchanges = std::map<std::pair<uint32_t, uint64_t>, StagedExchange>;  ///< indexed by worker and step

Exchanges gather(const std::vector<Mark>& workers, const std::vector<Mark>& shards) {
  Exchanges exchanges;
  for (const Mark& mark : workers) {
    StagedExchange& exchange = exchanges[{mark.worker, mark.step}];
    if (mark.kind == Kind::begun) {
      exchange.begun = mark.at_ns;
    } else if (mark.kind == Kind::done) {
      exchange.done = mark.at_ns;
    } else {
      exchange.buckets[{mark.shard, mark.bucket}][static_cast<size_t>(mark.kind)] = mark.at_ns;
    }
  }
  for (const Mark& mark : shards) {
    const auto exchange = exchanges.find({mark.worker, mark.step});
    // The rings of both ends cover different spans: the oldest marks of a shard may have no exchange.
    if (exchange == exchanges.end()) continue;
    // Both ends count the buckets of each shard from 0, so that shard and bucket together identify one.
    const auto bucket = exchange->second.buckets.find({mark.shard, mark.bucket});
    if (bucket != exchange->second.buckets.end()) bucket->second[static_cast<size_t>(mark.kind)] = mark.at_ns;
  }
  return exchanges;
}

const Moments* last_answered(const StagedExchange& exchange) {
  // An exchange ends with its last answer, so that this bucket is on the critical path.
  const auto at = [](const auto& bucket) { return bucket.second[static_cast<size_t>(Kind::answered)]; };
  const auto last = std::max_element(exchange.buckets.begin(), exchange.buckets.end(),
                                     [&](const auto& a, const auto& b) { return at(a) < at(b); });
  return last == exchange.buckets.end() ? nullptr : &last->second;
}

/// A stage ends with this mark.
struct Stage {
  const char* name;
  Kind end;
};
constexpr std::array<Stage, 9> kStages = {{{"backward", Kind::pushed},
                                           {"pack or copy", Kind::copied},
                                           {"post", Kind::posted},
                                           {"wire", Kind::noticed},
                                           {"arrival seen", Kind::taken},
                                           {"wait for peers", Kind::applying},
                                           {"sum + optimizer", Kind::applied},
                                           {"return", Kind::answered},
                                           {"visible", Kind::done}}};
using Lengths = std::array<double, kStages.size()>;

/// False: a mark is missing, because one of the rings is shorter than the run.
bool measure_exchange(const StagedExchange& exchange, Lengths& lengths) {
  const Moments* const last = last_answered(exchange);
  if (last == nullptr || exchange.begun == 0 || exchange.done == 0) return false;
  Moments moments = *last;
  const auto moment = [&](Kind kind) -> int64_t& { return moments[static_cast<size_t>(kind)]; };
  moment(Kind::done) = exchange.done;
  // Only staged payloads are copied.
  if (moment(Kind::copied) == 0) moment(Kind::copied) = moment(Kind::pushed);
  // A process that maps the memory reads a header before the call that stored it has returned.
  moment(Kind::posted) = std::min(moment(Kind::posted), moment(Kind::noticed));
  int64_t before = exchange.begun;
  for (size_t i = 0; i < kStages.size(); ++i) {
    const int64_t end = moment(kStages[i].end);
    if (end == 0) return false;
    // Marks of two processes may cross by some nanoseconds. A negative stage counts as 0; the sum stays the exchange.
    lengths[i] = static_cast<double>(std::max(end, before) - before) * 1e-3;
    before = std::max(end, before);
  }
  return true;
}

double total(const Lengths& lengths) {
  double sum = 0.0;
  for (const double length : lengths) sum += length;
  return sum;
}

}  // namespace

std::vector<std::pair<std::string, double>> stages_of(const std::vector<Mark>& workers, const std::vector<Mark>& shards,
                                                      bool backward) {
  std::vector<Lengths> all;
  Lengths lengths;
  for (const auto& [id, exchange] : gather(workers, shards))
    if (measure_exchange(exchange, lengths)) all.push_back(lengths);
  if (all.empty()) return {};
  // The middle fifth by total time: the stages of typical exchanges add up to their time; medians of stages do not.
  std::sort(all.begin(), all.end(), [](const Lengths& a, const Lengths& b) { return total(a) < total(b); });
  // max(): fewer than five exchanges still have one in the middle.
  const size_t first = all.size() * 2 / 5, end = std::max(first + 1, all.size() * 3 / 5);
  Lengths mean{};
  for (size_t i = first; i < end; ++i)
    for (size_t stage = 0; stage < mean.size(); ++stage)
      mean[stage] += all[i][stage] / static_cast<double>(end - first);
  // A bucket of one gradient waits for the posts of the others until it is posted.
  if (!backward) mean[2] += std::exchange(mean[0], 0.0);
  std::vector<std::pair<std::string, double>> stages;
  for (size_t stage = 0; stage < mean.size(); ++stage)
    if (stage > 1 || mean[stage] > 0) stages.emplace_back(kStages[stage].name, mean[stage]);
  return stages;
}

nlohmann::json to_json(const std::vector<Mark>& marks) {
  nlohmann::json list = nlohmann::json::array();
  for (const Mark& mark : marks)
    list.push_back({mark.at_ns, mark.step, mark.worker, mark.shard, mark.bucket, static_cast<int>(mark.kind)});
  return list;
}

std::vector<Mark> marks_from(const nlohmann::json& json) {
  std::vector<Mark> marks;
  for (const nlohmann::json& one : json) {
    marks.push_back({.at_ns = one.at(0),
                     .step = one.at(1),
                     .worker = one.at(2),
                     .shard = one.at(3),
                     .bucket = one.at(4),
                     .kind = static_cast<Kind>(one.at(5).get<int>())});
  }
  return marks;
}

}  // namespace gradrail::bench
