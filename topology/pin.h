#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "topology/cpu_set.h"

namespace gradrail::topology {

/// Binds threads and memory of this process, and reads back what the kernel made of it. Every call that is refused
/// returns why; callers warn and go on, for a run without a binding is slower, not wrong.
/// Threads  Any: what is bound is the calling thread, or the memory named.
class Pinner {
 public:
  /// Loads hwloc's view of this machine, without devices (about a ms).
  /// Errors  FAILED_PRECONDITION: hwloc was told of another machine (HWLOC_XMLFILE, HWLOC_SYNTHETIC). INTERNAL: it
  ///         cannot read this one.
  static absl::StatusOr<Pinner> open();

  Pinner(Pinner&&) noexcept;
  Pinner& operator=(Pinner&&) noexcept;
  ~Pinner();

  /// The calling thread, and threads it creates later, run on these cpus alone. All or nothing: refused, it stays where
  /// it was.
  /// Errors  PERMISSION_DENIED, INVALID_ARGUMENT: refused, or the kernel reads back another set. UNIMPLEMENTED: this
  ///         system binds no threads.
  absl::Status bind_thread(const CpuSet& cpus) const;

  /// Pages of [data, data + bytes) that nobody has touched yet will lie on this NUMA node (by the system's number),
  /// elsewhere when it is full; huge pages where the system offers them. Of memory behind a file (SharedMemory) this
  /// holds for every process that maps it, whoever touches it first. Whole pages: what shares one is bound with it.
  /// Errors  as above; UNIMPLEMENTED: this kernel binds no memory.
  absl::Status bind_memory(void* data, size_t bytes, int numa_os_index) const;

  /// Where it is now; for summaries and tests.
  absl::StatusOr<CpuSet> thread_cpus() const;
  absl::StatusOr<int> numa_node_of(const void* data, size_t bytes) const;  ///< -1: several, or not touched yet

 private:
  struct Impl;
  explicit Pinner(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// How much of the mapping that begins at or spans `data` the kernel holds in huge pages; 0 where it does not say.
/// Threads  Any; reads /proc/self/smaps, some ms in a large process.
size_t huge_page_bytes(const void* data);

}  // namespace gradrail::topology
