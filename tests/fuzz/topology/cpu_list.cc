#include "base/check.h"
#include "base/status.h"
#include "tests/fuzz/fuzz.h"
#include "topology/cpu_set.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using gradrail::topology::CpuSet;
  const std::string_view text = gradrail::fuzz::text_of(data, bytes);
  const size_t line = std::min(text.find('\n'), text.size());
  const absl::StatusOr<CpuSet> set = CpuSet::parse(text.substr(0, line));
  if (!set.ok()) {
    gradrail::fuzz::check_refusal(set.status(), absl::StatusCode::kInvalidArgument, "list of cpus");
    return 0;
  }
  const absl::StatusOr<CpuSet> again = CpuSet::parse(set->to_string());
  GRADRAIL_CHECK(again.ok() && *again == *set);
  GRADRAIL_CHECK(set->empty() ? set->first() == -1 : set->contains(set->first()));
  GRADRAIL_CHECK(set->to_vector().size() == static_cast<size_t>(set->count()));
  // The rules of sets, with the list of the second line.
  const absl::StatusOr<CpuSet> other = CpuSet::parse(text.substr(std::min(text.size(), line + 1)));
  if (!other.ok()) return 0;
  const CpuSet both = *set & *other, either = *set | *other, rest = *set - *other;
  GRADRAIL_CHECK(both.count() + either.count() == set->count() + other->count());
  GRADRAIL_CHECK((rest | both) == *set && !rest.intersects(*other));
  GRADRAIL_CHECK(either.includes(*set) && either.includes(*other) && set->includes(both));
  return 0;
}
