#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "topology/cpu_set.h"

namespace gradrail::topology {

/// Binds threads and memory of this process, and reads back what the kernel made of it. Every call that is refused
/// returns why; callers warn and continue, for a run without a binding is slower, not wrong.
/// Threads  Any: what is bound is the calling thread, or the memory named.
class Pinner {
 public:
  /// Loads hwloc's view of this machine, without devices (about a ms).
  /// Errors  FAILED_PRECONDITION: the environment gives hwloc another machine (HWLOC_XMLFILE, HWLOC_SYNTHETIC).
  ///         INTERNAL: hwloc cannot read this machine.
  static absl::StatusOr<Pinner> open();

  Pinner(Pinner&&) noexcept;
  Pinner& operator=(Pinner&&) noexcept;
  ~Pinner();

  /// The calling thread, and threads it creates later, run on these cpus alone. All or nothing: refused, it stays where
  /// it was.
  /// Errors  PERMISSION_DENIED, INVALID_ARGUMENT: refused, or the kernel reads back another set. UNIMPLEMENTED: this
  ///         system binds no threads.
  absl::Status bind_thread(const CpuSet& cpus) const;

  /// Binds pages of [data, data + bytes) that were not accessed yet to this NUMA node (by the system's number). If the
  /// node is full, another one gets the pages. Uses huge pages where the system has them. For memory behind a file
  /// (SharedMemory) the binding holds for every process that maps it, in any order of access. Pages are bound as a
  /// whole, with all data on them.
  /// Errors  Those above; UNIMPLEMENTED: this kernel does not bind memory.
  absl::Status bind_memory(void* data, size_t bytes, int numa_os_index) const;

  /// Cpus of the thread now; for summaries and tests.
  /// Errors  Those of bind_thread().
  absl::StatusOr<CpuSet> thread_cpus() const;
  absl::StatusOr<int> numa_node_of(const void* data, size_t bytes) const;  ///< -1: several, or not touched yet

 private:
  struct Impl;
  explicit Pinner(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// The cpus on which the kernel lets this process run; empty where the kernel does not report them.
/// Threads  Any.
CpuSet usable_cpus();

/// Bytes of the mapping that begins at or spans `data` which the kernel holds in huge pages; 0 where it does not report
/// them.
/// Threads  Any; reads /proc/self/smaps, some ms in a large process.
size_t huge_page_bytes(const void* data);

}  // namespace gradrail::topology
