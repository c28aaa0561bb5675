#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace gradrail::topology {

/// A set of logical processors ("PU", "hardware thread", "cpu") by the numbers the operating system gives them. Numbers
/// may have gaps (POWER) and be large.
class CpuSet {
 public:
  /// No machine has cpus beyond this: a bound for what files and flags may claim.
  static constexpr int kMaxCpu = 65535;

  CpuSet() = default;
  CpuSet(std::initializer_list<int> cpus);

  /// The kernel's list format, as in /sys and taskset: "0-3,8,16-19".
  /// Errors  INVALID_ARGUMENT names the part that is none.
  static absl::StatusOr<CpuSet> parse(std::string_view list);

  void insert(int cpu);
  void erase(int cpu);
  bool contains(int cpu) const;
  int count() const;
  bool empty() const { return count() == 0; }
  int first() const;  ///< -1: empty
  std::vector<int> to_vector() const;
  std::string to_string() const;  ///< list format; "" when empty

  bool intersects(const CpuSet& other) const;
  bool includes(const CpuSet& other) const;
  CpuSet operator&(const CpuSet& other) const;
  CpuSet operator|(const CpuSet& other) const;
  CpuSet operator-(const CpuSet& other) const;
  bool operator==(const CpuSet& other) const = default;

 private:
  void trim();

  std::vector<uint64_t> words_;  ///< no zero words at the end, so that equal sets compare equal
};

}  // namespace gradrail::topology
