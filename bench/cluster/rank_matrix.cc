#include "bench/cluster/rank_matrix.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "fmt/format.h"

namespace gradrail::bench {
namespace {

constexpr double kMostPairs = 0.75;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

bool RankMatrix::Part::has(size_t rank) const { return std::find(ranks.begin(), ranks.end(), rank) != ranks.end(); }

RankMatrix::RankMatrix(std::vector<RankPlace> ranks) : ranks_(std::move(ranks)) {
  has_links_ = std::any_of(ranks_.begin(), ranks_.end(),
                           [&](const RankPlace& rank) { return rank.host_id != ranks_.front().host_id; });
}

void RankMatrix::set(size_t from, size_t to, double time_us, bool directed) {
  GRADRAIL_CHECK(from < ranks_.size() && to < ranks_.size() && from != to);
  pairs_.push_back({from, to, time_us, directed});
}

bool RankMatrix::counts(const Pair& pair) const {
  return !has_links_ || ranks_[pair.from].host_id != ranks_[pair.to].host_id;
}

double RankMatrix::reference_us() const {
  std::vector<double> fastest;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    double best = 0.0;
    for (const Pair& pair : pairs_) {
      if ((pair.from != rank && pair.to != rank) || !counts(pair) || pair.time_us <= 0.0) continue;
      best = best == 0.0 ? pair.time_us : std::min(best, pair.time_us);
    }
    if (best > 0.0) fastest.push_back(best);
  }
  return fastest.empty() ? 0.0 : median(fastest);
}

std::string RankMatrix::name(size_t rank) const { return fmt::format("rank {} ({})", rank, ranks_[rank].address); }

std::vector<RankMatrix::Part> RankMatrix::parts() const {
  std::vector<Part> list;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const auto is_here = [&](const Part& part) { return ranks_[part.ranks.front()].host_id == ranks_[rank].host_id; };
    const auto host = std::find_if(list.begin(), list.end(), is_here);
    if (host == list.end()) {
      list.push_back({.ranks = {rank}});
    } else {
      host->ranks.push_back(rank);
    }
  }
  // The single host explains nothing without links: its ranks do.
  if (!has_links_) list.clear();
  const size_t hosts = list.size();
  for (Part& host : list) {
    std::string ranks;
    for (const size_t rank : host.ranks) ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", rank);
    host.text = fmt::format("host {} (rank{} {})", ranks_[host.ranks.front()].address,
                            host.ranks.size() == 1 ? "" : "s", ranks);
  }
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const bool is_alone = std::any_of(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(hosts),
                                      [&](const Part& host) { return host.ranks.size() == 1 && host.has(rank); });
    if (!is_alone)
      list.push_back({.ranks = {rank}, .text = fmt::format("NIC {} (rank {})", ranks_[rank].address, rank)});
  }
  return list;
}

std::string RankMatrix::extent(const std::vector<const Pair*>& pairs) const {
  std::vector<double> times;
  for (const Pair* const pair : pairs) {
    if (pair->time_us > 0.0) times.push_back(pair->time_us);
  }
  const size_t failed = pairs.size() - times.size();
  std::string text;
  if (!times.empty()) {
    text = fmt::format("{} pair{} take{} {:.2f} times the reference", times.size(), times.size() == 1 ? "" : "s",
                       times.size() == 1 ? "s" : "", median(times) / reference_us());
  }
  if (failed > 0) text += fmt::format("{}{} pair{} failed", text.empty() ? "" : ", ", failed, failed == 1 ? "" : "s");
  return text;
}

std::vector<std::string> RankMatrix::slow_parts(double factor) const {
  const double limit = factor * reference_us();
  const auto is_slow = [&](const Pair& pair) { return pair.time_us <= 0.0 || pair.time_us > limit; };
  std::vector<const Pair*> left;  // no named part explains them
  for (const Pair& pair : pairs_) {
    if (counts(pair)) left.push_back(&pair);
  }
  std::vector<std::string> texts;
  const std::vector<Part> candidates = parts();
  while (true) {
    const Part* worst = nullptr;
    std::vector<const Pair*> explained;
    double share = 0.0;
    for (const Part& part : candidates) {
      size_t all = 0;
      std::vector<const Pair*> slow;
      for (const Pair* const pair : left) {
        if (part.has(pair->from) == part.has(pair->to)) continue;
        ++all;
        if (is_slow(*pair)) slow.push_back(pair);
      }
      // One pair has two ends, and does not show which of them is slow.
      if (slow.size() < 2 || static_cast<double>(slow.size()) < kMostPairs * static_cast<double>(all)) continue;
      const double own = static_cast<double>(slow.size()) / static_cast<double>(all);
      if (own < share || (own == share && slow.size() <= explained.size())) continue;
      worst = &part;
      share = own;
      explained = std::move(slow);
    }
    if (worst == nullptr) break;
    texts.push_back(fmt::format("{}: {}", worst->text, extent(explained)));
    std::erase_if(left, [&](const Pair* pair) { return worst->has(pair->from) || worst->has(pair->to); });
  }
  for (const Pair* const pair : left) {
    if (!is_slow(*pair)) continue;
    texts.push_back(fmt::format("link {} {} {}: {}", name(pair->from), pair->directed ? "to" : "and", name(pair->to),
                                extent({pair})));
  }
  return texts;
}

std::vector<std::string> RankMatrix::lines() const {
  std::string head = fmt::format("{:>5}", "rank");
  for (size_t to = 0; to < ranks_.size(); ++to) head += fmt::format("{:>10}", to);
  std::vector<std::string> list = {head};
  for (size_t from = 0; from < ranks_.size(); ++from) {
    std::string line = fmt::format("{:>5}", from);
    for (size_t to = 0; to < ranks_.size(); ++to) {
      const auto found = std::find_if(pairs_.begin(), pairs_.end(), [&](const Pair& pair) {
        return (pair.from == from && pair.to == to) || (!pair.directed && pair.from == to && pair.to == from);
      });
      if (found == pairs_.end()) {
        line += fmt::format("{:>10}", "-");
      } else if (found->time_us <= 0.0) {
        line += fmt::format("{:>10}", "failed");
      } else {
        line += fmt::format("{:>10.1f}", found->time_us);
      }
    }
    list.push_back(fmt::format("{}  {}", line, ranks_[from].address));
  }
  return list;
}

}  // namespace gradrail::bench
