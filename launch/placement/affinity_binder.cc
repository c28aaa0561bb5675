#include "launch/placement/affinity_binder.h"

#include <algorithm>

#include "base/check.h"
#include "base/log.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace gradrail::launch {
namespace {

/// Smaller memory has no huge pages anywhere.
constexpr size_t kHugePageBytes = size_t{2} << 20;

std::string huge_pages(const std::vector<AffinityBinder::UnitMemory>& memory) {
  size_t huge = 0, all = 0;
  for (const AffinityBinder::UnitMemory& spans : memory) {
    for (const MemorySpan& span : spans) {
      if (span.bytes < kHugePageBytes) continue;
      all += span.bytes;
      huge += std::min(span.bytes, topology::huge_page_bytes(span.data));
    }
  }
  if (all == 0) return "";
  // The variables lie in shared memory, for which this setting decides and not the one of ordinary memory.
  return fmt::format("Huge pages: {} of {} KiB{}", huge >> 10, all >> 10,
                     huge > 0 ? "" : " (/sys/kernel/mm/transparent_hugepage/shmem_enabled must be advise)");
}

}  // namespace

AffinityBinder::AffinityBinder(const HostPlan& plan, const TaskOptions& options)
    : places_(places_of(plan, options)),
      task_cpus_(plan.task_cpus.empty() ? plan.machine.allowed : plan.task_cpus),
      one_node_(plan.machine.numa_nodes.size() == 1),
      refused_(std::make_unique<std::atomic<bool>[]>(places_.size())) {
  // Both cases leave `pinner_` empty, and each later call returns at once.
  if (!plan.known || options.no_pin) return;
  absl::StatusOr<topology::Pinner> pinner = topology::Pinner::open();
  if (!pinner.ok()) {
    refused(pinner.status());
    return;
  }
  pinner_ = *std::move(pinner);
  // The thread that starts the others: they inherit the restriction.
  if (plan.task_cpus.empty()) return;
  if (const absl::Status bound = pinner_->bind_thread(task_cpus_); !bound.ok()) refused(bound);
}

void AffinityBinder::refused(const absl::Status& why) {
  // Once: towers and shards bind from their own threads, and one cause refuses all of them.
  if (warned_.exchange(true)) return;
  log_warning("not everything is bound as planned: {}", message_of(why));
}

void AffinityBinder::bind(size_t unit) {
  const UnitPlace& place = places_[unit];
  if (!binds() || place.everywhere || !place.why_free.empty()) return;
  const absl::Status bound = pinner_->bind_thread(place.cpus);
  if (bound.ok()) return;
  // The summary runs in another thread and must not claim a binding that does not exist.
  refused_[unit].store(true);
  refused(bound);
}

void AffinityBinder::unbind(size_t unit) {
  const UnitPlace& place = places_[unit];
  // Nothing was bound, so nothing has to be released.
  if (!binds() || place.everywhere || !place.why_free.empty()) return;
  if (const absl::Status bound = pinner_->bind_thread(task_cpus_); !bound.ok()) refused(bound);
}

void AffinityBinder::bind_memory(size_t unit, const MemorySpan& memory) {
  const int node = places_[unit].numa_os_index;
  // Memory of a GPU has no NUMA node of the host.
  if (!binds() || node < 0 || memory.kind != MemoryKind::host) return;
  const absl::Status bound = pinner_->bind_memory(memory.data, memory.bytes, node);
  // With one NUMA node a refusal has no effect on the place of the memory.
  if (!bound.ok() && !one_node_) refused(bound);
}

std::string AffinityBinder::where_it_runs(size_t unit) const {
  const UnitPlace& place = places_[unit];
  if (!place.why_free.empty()) return place.why_free;
  if (!binds() || refused_[unit].load()) return "not bound (see the warning)";
  return fmt::format("{} {}", place.shared ? "sharing" : "on", cpus_text(place.cpus));
}

std::string AffinityBinder::where_memory_lies(const UnitPlace& place, const UnitMemory& memory) const {
  if (!binds() || place.numa_os_index < 0) return "";
  int node = -1;
  for (const MemorySpan& span : memory) {
    const absl::StatusOr<int> found = pinner_->numa_node_of(span.data, span.bytes);
    if (!found.ok() || *found < 0 || (node >= 0 && *found != node)) {
      return fmt::format(" (NUMA node {})", place.numa_os_index);  // untouched, spread, or the query is forbidden
    }
    node = *found;
  }
  if (node < 0) return fmt::format(" (NUMA node {})", place.numa_os_index);
  return node == place.numa_os_index ? fmt::format(" (NUMA node {}, memory there)", node)
                                     : fmt::format(" (NUMA node {}, memory on node {})", place.numa_os_index, node);
}

std::vector<std::string> AffinityBinder::summary(const std::vector<UnitMemory>& memory, bool verbose) const {
  // One entry per unit, in the order of the plan: the index connects both.
  GRADRAIL_CHECK(memory.size() == places_.size());
  std::vector<std::string> units;
  for (size_t i = 0; i < places_.size(); ++i) {
    const UnitPlace& place = places_[i];
    units.push_back(fmt::format("{} {}{}{}", place.name, where_it_runs(i), where_memory_lies(place, memory[i]),
                                place.nic.empty() ? "" : ", planned NIC " + place.nic));
  }
  std::vector<std::string> lines = {fmt::format("Placed: {}", fmt::join(units, "; "))};
  const std::string huge = verbose ? huge_pages(memory) : "";
  if (!huge.empty()) lines.push_back(huge);
  return lines;
}

}  // namespace gradrail::launch
