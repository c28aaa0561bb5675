#include "topology/plan/blocks.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

namespace gradrail::topology::planning {
namespace {

/// The free cores in a line.
class Line {
 public:
  Line(const std::vector<Pool>& pools, const std::vector<int>& free) {
    constexpr int64_t kPackage = int64_t{1} << 32;
    for (size_t p = 0; p < free.size(); ++p)
      for (int core = 0; core < free[p]; ++core) {
        int64_t border = pools_.empty() ? 0 : borders_.back();
        if (!pools_.empty() && pools_.back() != p)
          border += pools[pools_.back()].package == pools[p].package ? 1 : kPackage;
        pools_.push_back(p);
        borders_.push_back(border);
      }
  }

  size_t size() const { return pools_.size(); }
  int64_t crossings(size_t begin, size_t size) const { return borders_[begin + size - 1] - borders_[begin]; }

  Block block(size_t begin, size_t size) const {
    Block block;
    for (size_t i = begin; i < begin + size; ++i) {
      if (block.empty() || block.back().first != pools_[i]) block.emplace_back(pools_[i], 0);
      ++block.back().second;
    }
    std::stable_sort(block.begin(), block.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
    return block;
  }

 private:
  std::vector<size_t> pools_;     ///< pool of each core
  std::vector<int64_t> borders_;  ///< likewise: packages and pools that ended before it
};

constexpr int64_t kNever = std::numeric_limits<int64_t>::max() / 2;

/// Blocks of all cores. least[j]: the fewest crossings of the first blocks, j of them with one core more.
Blocks cut_all(const Line& line, size_t count) {
  const size_t small = line.size() / count, large_blocks = line.size() % count;
  std::vector<int64_t> least(large_blocks + 1, kNever);
  least[0] = 0;
  std::vector<std::vector<bool>> is_large(count, std::vector<bool>(large_blocks + 1));
  for (size_t block = 0; block < count; ++block) {
    std::vector<int64_t> next(large_blocks + 1, kNever);
    for (size_t j = 0; j <= large_blocks; ++j) {
      const size_t begin = block * small + j;
      if (least[j] < kNever && begin + small <= line.size()) next[j] = least[j] + line.crossings(begin, small);
      if (j == 0 || least[j - 1] == kNever) continue;
      // The later one of two equal blocks is the small one: the first towers have the larger blocks.
      const int64_t with_large = least[j - 1] + line.crossings(begin - 1, small + 1);
      is_large[block][j] = with_large < next[j];
      next[j] = std::min(next[j], with_large);
    }
    least = std::move(next);
  }
  Blocks result{.blocks = {}, .crossings = least[large_blocks]};
  for (size_t block = count, end = line.size(), j = large_blocks; block-- > 0;) {
    const size_t size = small + (is_large[block][j] ? 1 : 0);
    j -= size - small;
    end -= size;
    result.blocks.insert(result.blocks.begin(), line.block(end, size));
  }
  return result;
}

/// Crossings of the same blocks with `gaps` free cores anywhere. least[j][g]: crossings with g of them until now.
int64_t crossings_with_gaps(const Line& line, size_t count, size_t gaps) {
  const size_t small = (line.size() - gaps) / count, large_blocks = (line.size() - gaps) % count;
  using Table = std::vector<std::vector<int64_t>>;
  const Table never(large_blocks + 1, std::vector<int64_t>(gaps + 1, kNever));
  Table least = never;
  least[0].assign(gaps + 1, 0);
  for (size_t block = 0; block < count; ++block) {
    Table next = never;
    for (size_t j = 0; j <= large_blocks; ++j)
      for (size_t g = 0; g <= gaps; ++g) {
        const size_t begin = block * small + j + g;
        int64_t& best = next[j][g];
        if (g > 0) best = next[j][g - 1];
        if (least[j][g] < kNever && begin + small <= line.size())
          best = std::min(best, least[j][g] + line.crossings(begin, small));
        if (j > 0 && least[j - 1][g] < kNever)
          best = std::min(best, least[j - 1][g] + line.crossings(begin - 1, small + 1));
      }
    least = std::move(next);
  }
  return least[large_blocks][gaps];
}

/// Blocks of `size` cores, with gaps. least[end]: the fewest crossings of the first blocks before `end`, and how far
/// they are from where they would be if the gaps were equal.
Blocks cut_some(const Line& line, size_t count, size_t size) {
  using Price = std::pair<int64_t, int64_t>;
  std::vector<Price> least(line.size() + 1);
  std::vector<std::vector<bool>> ends(count, std::vector<bool>(line.size() + 1));
  for (size_t block = 0; block < count; ++block) {
    std::vector<Price> next(line.size() + 1, Price{kNever, 0});
    const auto ideal = static_cast<int64_t>(block * line.size() / count);
    for (size_t end = (block + 1) * size; end <= line.size(); ++end) {
      const size_t begin = end - size;
      const Price here{least[begin].first + line.crossings(begin, size),
                       least[begin].second + std::abs(static_cast<int64_t>(begin) - ideal)};
      ends[block][end] = here < next[end - 1];
      next[end] = std::min(next[end - 1], here);
    }
    least = std::move(next);
  }
  Blocks result{.blocks = {}, .crossings = least[line.size()].first};
  for (size_t block = count, end = line.size(); block-- > 0; end -= size) {
    while (!ends[block][end]) --end;
    result.blocks.insert(result.blocks.begin(), line.block(end - size, size));
  }
  return result;
}

}  // namespace

Blocks cut_blocks(const std::vector<Pool>& pools, const std::vector<int>& room, int count, int most, int gaps) {
  if (count == 0) return {};
  const Line line(pools, room);
  const auto blocks = static_cast<size_t>(count), size = static_cast<size_t>(most), free = static_cast<size_t>(gaps);
  if (most > 0 && blocks * size + free <= line.size()) return cut_some(line, blocks, size);
  if (free > 0) return {.blocks = {}, .crossings = crossings_with_gaps(line, blocks, free)};
  return cut_all(line, blocks);
}

}  // namespace gradrail::topology::planning
