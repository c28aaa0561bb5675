#include "topology/cpu_set.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/parse_number.h"
#include "fmt/format.h"

namespace gradrail::topology {
namespace {

// The set is a bitmap: a machine has at most some thousand cpus, and planning is mostly union and intersection.
constexpr size_t kWordBits = 64;

size_t word_of(int cpu) { return static_cast<size_t>(cpu) / kWordBits; }
uint64_t bit_of(int cpu) { return uint64_t{1} << (static_cast<size_t>(cpu) % kWordBits); }

/// A number that makes up the whole of `text`; -1 when it is none or too large for a cpu.
int parse_cpu(std::string_view text) {
  const int cpu = parse_number<int>(text).value_or(-1);
  return cpu <= CpuSet::kMaxCpu ? cpu : -1;
}

}  // namespace

CpuSet::CpuSet(std::initializer_list<int> cpus) {
  for (const int cpu : cpus) insert(cpu);
}

absl::StatusOr<CpuSet> CpuSet::parse(std::string_view list) {
  CpuSet result;
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    const std::string_view part = list.substr(0, comma);
    // The comma itself stays for the check below.
    list.remove_prefix(comma);
    const size_t dash = std::min(part.find('-'), part.size());
    const int first = parse_cpu(part.substr(0, dash));
    const int last = dash < part.size() ? parse_cpu(part.substr(dash + 1)) : first;
    // A list that ends with a comma is wrong as well; the loop would not find an empty part after it.
    if (first < 0 || last < first || list == ",") {
      return absl::InvalidArgumentError(
          fmt::format("'{}' is not a list of cpus: numbers and ranges, such as 0-3,8 (0 to {})", part, kMaxCpu));
    }
    for (int cpu = first; cpu <= last; ++cpu) result.insert(cpu);
    if (!list.empty()) list.remove_prefix(1);
  }
  return result;
}

void CpuSet::insert(int cpu) {
  GRADRAIL_CHECK(cpu >= 0 && cpu <= kMaxCpu);
  if (word_of(cpu) >= words_.size()) words_.resize(word_of(cpu) + 1);
  words_[word_of(cpu)] |= bit_of(cpu);
}

void CpuSet::erase(int cpu) {
  // The check also keeps the index below within the words.
  if (!contains(cpu)) return;
  words_[word_of(cpu)] &= ~bit_of(cpu);
  trim();
}

bool CpuSet::contains(int cpu) const {
  return cpu >= 0 && word_of(cpu) < words_.size() && (words_[word_of(cpu)] & bit_of(cpu)) != 0;
}

int CpuSet::count() const {
  int count = 0;
  for (const uint64_t word : words_) count += std::popcount(word);
  return count;
}

int CpuSet::first() const {
  for (size_t i = 0; i < words_.size(); ++i)
    if (words_[i] != 0) return static_cast<int>(i * kWordBits) + std::countr_zero(words_[i]);
  return -1;
}

std::vector<int> CpuSet::to_vector() const {
  std::vector<int> cpus;
  for (size_t i = 0; i < words_.size(); ++i)
    // Each turn clears the lowest bit.
    for (uint64_t rest = words_[i]; rest != 0; rest &= rest - 1)
      cpus.push_back(static_cast<int>(i * kWordBits) + std::countr_zero(rest));
  return cpus;
}

std::string CpuSet::to_string() const {
  std::string text;
  const std::vector<int> cpus = to_vector();
  for (size_t i = 0; i < cpus.size();) {
    size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    text += text.empty() ? "" : ",";
    text += last == i ? fmt::format("{}", cpus[i]) : fmt::format("{}-{}", cpus[i], cpus[last]);
    i = last + 1;
  }
  return text;
}

bool CpuSet::intersects(const CpuSet& other) const { return !(*this & other).empty(); }

bool CpuSet::includes(const CpuSet& other) const { return (other - *this).empty(); }

CpuSet CpuSet::operator&(const CpuSet& other) const {
  CpuSet result;
  result.words_.resize(std::min(words_.size(), other.words_.size()));
  for (size_t i = 0; i < result.words_.size(); ++i) result.words_[i] = words_[i] & other.words_[i];
  result.trim();
  return result;
}

CpuSet CpuSet::operator|(const CpuSet& other) const {
  // The longer one has no zero word at its end, so that the union needs no trim().
  CpuSet result = words_.size() < other.words_.size() ? other : *this;
  const CpuSet& shorter = words_.size() < other.words_.size() ? *this : other;
  for (size_t i = 0; i < shorter.words_.size(); ++i) result.words_[i] |= shorter.words_[i];
  return result;
}

CpuSet CpuSet::operator-(const CpuSet& other) const {
  CpuSet result = *this;
  for (size_t i = 0; i < std::min(words_.size(), other.words_.size()); ++i) result.words_[i] &= ~other.words_[i];
  result.trim();
  return result;
}

void CpuSet::trim() {
  // Equal sets have equal words: without this step the comparison would depend on how a set was made.
  while (!words_.empty() && words_.back() == 0) words_.pop_back();
}

}  // namespace gradrail::topology
