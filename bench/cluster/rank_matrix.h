#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace gradrail::bench {

/// The place of a rank.
struct RankPlace {
  std::string host_id;  ///< equal for ranks of one host
  std::string address;  ///< address for the other ranks: that of its NIC
};

/// The times of all pairs of ranks, and the parts of the cluster that explain the slow ones. Pure.
///
/// The reference is the median over all ranks of their fastest pair: one slow host, which slows all pairs with it, does
/// not move it. Pairs of one host count only if there are no others, because their bytes cross no link.
class RankMatrix {
 public:
  static constexpr double kFailed = -1.0;  ///< the time of a pair that has none

  explicit RankMatrix(std::vector<RankPlace> ranks);

  /// `directed`: the time is that of bytes from the first to the second rank. Otherwise it is that of both directions.
  void set(size_t from, size_t to, double time_us, bool directed);

  /// 0: no pair has a time.
  double reference_us() const;
  /// Whether two pairs can be compared. Two ranks have one pair, or one in each direction.
  bool is_comparable() const { return ranks_.size() > 2; }

  /// The hosts, NICs and links with slow pairs, as texts. A pair is slow if it takes more than `factor` times
  /// the reference, or has failed. The part with the largest share of slow pairs is first. A host or NIC is named if
  /// three quarters of its pairs are slow. Its pairs then are no reason to name another part.
  std::vector<std::string> slow_parts(double factor) const;

  /// A line for each rank: the times of its pairs in microseconds.
  std::vector<std::string> lines() const;

 private:
  struct Pair {
    size_t from = 0;
    size_t to = 0;
    double time_us = 0.0;
    bool directed = false;
  };
  /// A host, or one rank of a host with several.
  struct Part {
    std::vector<size_t> ranks;
    std::string text;
    bool has(size_t rank) const;
  };

  bool counts(const Pair& pair) const;
  std::vector<Part> parts() const;
  std::string name(size_t rank) const;
  std::string extent(const std::vector<const Pair*>& pairs) const;

  const std::vector<RankPlace> ranks_;
  bool has_links_ = false;  ///< some ranks are on different hosts
  std::vector<Pair> pairs_;
};

}  // namespace gradrail::bench
