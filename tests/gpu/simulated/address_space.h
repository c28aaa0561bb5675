#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace gradrail::simulated {

struct Device;

/// Memory of the devices, in one range of addresses that has no other use in the process. An address of the range
/// outside of every allocation is an error that is detected. No address is used twice.
///
///   [guard page][slack 0xff][allocation …][guard page]     the allocation's end, rounded up to 256, meets the guard
///
/// Each lies in a file of its own, so that other processes can map it (IPC) and it can stand for a dma-buf.
class AddressSpace {
 public:
  struct Allocation {
    Device* device;
    uintptr_t address;
    size_t bytes;
    uintptr_t mapping;  ///< of the file, whole pages
    size_t mapping_bytes;
    int fd;
    bool imported;   ///< another process' memory
    int opened = 1;  ///< imported: so many times, at the same address
  };

  AddressSpace();

  /// Filled with 0xff, NaN in every float. 0 when the host has no memory.
  uintptr_t allocate(Device* device, size_t bytes);
  /// Takes over the descriptor of memory that another process allocated. Memory that is mapped for the device already
  /// has the same address again.
  uintptr_t import(Device* device, int fd, size_t bytes);
  /// False when no allocation begins there; stops the process after a write behind the allocation's end. What was
  /// imported several times stays until the last release.
  bool release(uintptr_t address, bool imported);

  /// The current allocation that holds the address.
  std::optional<Allocation> find(uintptr_t address) const;
  /// True for addresses of a device, lost or not.
  bool contains(uintptr_t address) const { return address - begin_ < kBytes; }
  /// True when all of it lies in one current allocation, or is host memory.
  bool is_usable(uintptr_t address, size_t bytes) const;
  int count() const;

  // Host memory that was pinned.
  /// False when one of its pages is pinned already, if only for other bytes.
  bool pin(uintptr_t address, size_t bytes);
  bool unpin(uintptr_t address);
  bool is_pinned(uintptr_t address, size_t bytes) const { return pin_of(address, bytes) != 0; }
  /// The number of the pin that holds all of it, 0 without. A later pin of the same memory has another number.
  uint64_t pin_of(uintptr_t address, size_t bytes) const;
  /// True when a pin holds one end of it, and not all of it.
  bool is_partly_pinned(uintptr_t address, size_t bytes) const;
  int pins() const;

 private:
  static constexpr size_t kBytes = size_t{256} << 30;
  uintptr_t import_again(Device* device, int fd);
  uintptr_t map(Device* device, int fd, size_t bytes, bool imported);

  uintptr_t begin_;
  mutable Mutex mutex_;
  uintptr_t next_ ABSL_GUARDED_BY(mutex_);
  std::map<uintptr_t, Allocation> allocations_ ABSL_GUARDED_BY(mutex_);  ///< by address
  struct Pin {
    size_t bytes;
    uint64_t number;
  };
  std::map<uintptr_t, Pin> pins_ ABSL_GUARDED_BY(mutex_);  ///< by address
  uint64_t newest_pin_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gradrail::simulated
