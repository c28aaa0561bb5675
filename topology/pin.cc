#include "topology/pin.h"

#include <sched.h>

#include <hwloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

#include "base/status.h"
#include "fmt/format.h"

namespace gradrail::topology {
namespace {

/// The huge page of x86-64 and of arm64 with pages of 4 KiB. A smaller range cannot contain one.
constexpr size_t kHugePageBytes = size_t{2} << 20;

struct FreeBitmap {
  void operator()(hwloc_bitmap_t bitmap) const { hwloc_bitmap_free(bitmap); }
};
using Bitmap = std::unique_ptr<hwloc_bitmap_s, FreeBitmap>;

Bitmap empty_bitmap() { return Bitmap(hwloc_bitmap_alloc()); }

Bitmap to_bitmap(const CpuSet& cpus) {
  Bitmap bitmap = empty_bitmap();
  for (const int cpu : cpus.to_vector()) hwloc_bitmap_set(bitmap.get(), static_cast<unsigned>(cpu));
  return bitmap;
}

CpuSet to_cpu_set(hwloc_const_bitmap_t bitmap) {
  CpuSet cpus;
  for (int cpu = hwloc_bitmap_first(bitmap); cpu >= 0; cpu = hwloc_bitmap_next(bitmap, cpu)) cpus.insert(cpu);
  return cpus;
}

std::string text(hwloc_const_bitmap_t bitmap) { return to_cpu_set(bitmap).to_string(); }

/// The status of a call that ended with `error`; `what` was tried.
absl::Status refused(const std::string& what, int error) {
  const std::string said = fmt::format("{}: {}", what, std::strerror(error));
  switch (error) {
    case EPERM:
    case EACCES:
      return absl::PermissionDeniedError(
          said + " (a container's seccomp profile forbids it: allow CAP_SYS_NICE, or run with --no-pin)");
    case ENOSYS:
      return absl::UnimplementedError(said + " (this system cannot; --no-pin goes without)");
    case EINVAL:
    // hwloc reports EXDEV where the system cannot bind to exactly this set.
    case EXDEV:
      return absl::InvalidArgumentError(said + " (not among what this process may use; --no-pin goes without)");
    default:
      return absl::InternalError(said + " (--no-pin goes without)");
  }
}

/// Requests huge pages for the pages that are completely inside: advice about half a page is refused.
void request_huge_pages(void* data, size_t bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t first = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) / page * page;
  // The call is a request: huge_page_bytes() reports the result.
  if (bytes >= kHugePageBytes) (void)madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
}

}  // namespace

struct Pinner::Impl {
  hwloc_topology_t topology = nullptr;

  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (topology != nullptr) hwloc_topology_destroy(topology);
  }
};

Pinner::Pinner(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Pinner::Pinner(Pinner&&) noexcept = default;
Pinner& Pinner::operator=(Pinner&&) noexcept = default;
Pinner::~Pinner() = default;

absl::StatusOr<Pinner> Pinner::open() {
  auto impl = std::make_unique<Impl>();
  const auto failed = [](const char* call) {
    return absl::InternalError(
        fmt::format("hwloc cannot read this machine: {}: {} (is /sys there?)", call, std::strerror(errno)));
  };
  if (hwloc_topology_init(&impl->topology) != 0) return failed("init");
  // Caches are not needed here. A look at a core must not move this thread to it.
  hwloc_topology_set_cache_types_filter(impl->topology, HWLOC_TYPE_FILTER_KEEP_NONE);
  hwloc_topology_set_flags(impl->topology,
                           HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED | HWLOC_TOPOLOGY_FLAG_DONT_CHANGE_BINDING);
  if (hwloc_topology_load(impl->topology) != 0) return failed("load");
  // hwloc accepts binding calls for a foreign topology and ignores them: the error would be invisible.
  if (hwloc_topology_is_thissystem(impl->topology) == 0) {
    return absl::FailedPreconditionError(
        "HWLOC_XMLFILE, HWLOC_SYNTHETIC or HWLOC_FSROOT describes another machine, and nothing can be bound there: "
        "unset it");
  }
  return Pinner(std::move(impl));
}

absl::Status Pinner::bind_thread(const CpuSet& cpus) const {
  if (cpus.empty()) return absl::InvalidArgumentError("cannot bind a thread to no cpu at all");
  const std::string what = fmt::format("bind a thread to cpus {}", cpus.to_string());
  // Recorded for the case in which the kernel grants only a part.
  GRADRAIL_ASSIGN_OR_RETURN(const CpuSet before, thread_cpus());
  if (hwloc_set_cpubind(impl_->topology, to_bitmap(cpus).get(), HWLOC_CPUBIND_THREAD) != 0) {
    return refused(what, errno);
  }
  GRADRAIL_ASSIGN_OR_RETURN(const CpuSet after, thread_cpus());
  if (after == cpus) return absl::OkStatus();
  // The kernel quietly takes what is allowed of a set: half of what was planned is another plan.
  (void)hwloc_set_cpubind(impl_->topology, to_bitmap(before).get(), HWLOC_CPUBIND_THREAD);
  return absl::InvalidArgumentError(
      fmt::format("{}: the kernel made it {} (cgroup or taskset allow no more; name others with --cores)", what,
                  after.to_string()));
}

absl::StatusOr<CpuSet> Pinner::thread_cpus() const {
  const Bitmap bitmap = empty_bitmap();
  if (hwloc_get_cpubind(impl_->topology, bitmap.get(), HWLOC_CPUBIND_THREAD) != 0) {
    return refused("ask for the cpus of a thread", errno);
  }
  return to_cpu_set(bitmap.get());
}

absl::Status Pinner::bind_memory(void* data, size_t bytes, int numa_os_index) const {
  if (bytes == 0) return absl::OkStatus();
  const hwloc_const_nodeset_t there = hwloc_topology_get_topology_nodeset(impl_->topology);
  if (numa_os_index < 0 || !hwloc_bitmap_isset(there, static_cast<unsigned>(numa_os_index))) {
    return absl::InvalidArgumentError(
        fmt::format("bind memory to NUMA node {}: this machine has {}", numa_os_index, text(there)));
  }
  const std::string what = fmt::format("bind {} bytes to NUMA node {}", bytes, numa_os_index);
  const Bitmap node = empty_bitmap();
  hwloc_bitmap_only(node.get(), static_cast<unsigned>(numa_os_index));
  // The binding is not strict: a full node must not kill the process, and its neighbor's memory is slower, not wrong.
  if (hwloc_set_area_membind(impl_->topology, data, bytes, node.get(), HWLOC_MEMBIND_BIND, HWLOC_MEMBIND_BYNODESET) !=
      0) {
    return refused(what, errno);
  }
  // Read back: a call without an error does not prove that the policy holds.
  const Bitmap got = empty_bitmap();
  hwloc_membind_policy_t policy = HWLOC_MEMBIND_DEFAULT;
  // The query is for one byte: hwloc queries every page, and they were bound in one call.
  if (hwloc_get_area_membind(impl_->topology, data, 1, got.get(), &policy, HWLOC_MEMBIND_BYNODESET) != 0) {
    return refused(what + " and read it back", errno);
  }
  if (policy != HWLOC_MEMBIND_BIND || hwloc_bitmap_isequal(got.get(), node.get()) == 0) {
    return absl::InvalidArgumentError(fmt::format("{}: the kernel made it {}", what, text(got.get())));
  }
  // The call follows the binding: the pages of the first access are then on the node.
  request_huge_pages(data, bytes);
  return absl::OkStatus();
}

absl::StatusOr<int> Pinner::numa_node_of(const void* data, size_t bytes) const {
  if (bytes == 0) return -1;
  const Bitmap nodes = empty_bitmap();
  if (hwloc_get_area_memlocation(impl_->topology, data, bytes, nodes.get(), HWLOC_MEMBIND_BYNODESET) != 0) {
    return refused("ask where memory lies", errno);
  }
  return hwloc_bitmap_weight(nodes.get()) == 1 ? hwloc_bitmap_first(nodes.get()) : -1;
}

size_t huge_page_bytes(const void* data) {
  std::ifstream smaps("/proc/self/smaps");
  const auto address = reinterpret_cast<uintptr_t>(data);
  // The line with addresses begins a mapping; the lines up to the next such line describe it.
  bool ours = false;
  size_t kib_sum = 0;
  for (std::string line; std::getline(smaps, line);) {
    unsigned long long first = 0, end = 0, kib = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx ", &first, &end) == 2) ours = first <= address && address < end;
    if (!ours) continue;
    // Private memory and shared memory (memfd, /dev/shm) have different fields in smaps (proc(5)).
    const bool huge = line.starts_with("AnonHugePages:") || line.starts_with("ShmemPmdMapped:");
    if (huge && std::sscanf(line.c_str(), "%*[^:]: %llu kB", &kib) == 1) kib_sum += kib;
  }
  return kib_sum << 10;
}

CpuSet usable_cpus() {
  CpuSet cpus;
  // The kernel refuses a mask that is smaller than its own, with EINVAL. cpu_set_t has 1024 cpus.
  for (int count = CPU_SETSIZE; count <= CpuSet::kMaxCpu + 1; count *= 2) {
    const size_t bytes = CPU_ALLOC_SIZE(count);
    std::vector<cpu_set_t> mask((bytes + sizeof(cpu_set_t) - 1) / sizeof(cpu_set_t));
    if (sched_getaffinity(0, bytes, mask.data()) == 0) {
      for (int cpu = 0; cpu < count; ++cpu)
        if (CPU_ISSET_S(cpu, bytes, mask.data())) cpus.insert(cpu);
      return cpus;
    }
    if (errno != EINVAL) return cpus;
  }
  return cpus;
}

}  // namespace gradrail::topology
