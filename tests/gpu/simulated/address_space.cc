#include "tests/gpu/simulated/address_space.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace gradrail::simulated {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kAlign = 256;
constexpr unsigned char kPoison = 0xff;

size_t round_up(size_t value, size_t to) { return (value + to - 1) / to * to; }

[[noreturn]] void stop(const char* why) {
  std::fprintf(stderr, "simulated GPU: %s\n", why);
  std::abort();
}

/// Bytes between the allocation's end and the guard page. Only a kernel that writes too far can change them.
void check_slack(const AddressSpace::Allocation& allocation) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(allocation.address);
  const size_t end = allocation.mapping + allocation.mapping_bytes - allocation.address;
  for (size_t i = allocation.bytes; i < end; ++i) {
    if (bytes[i] != kPoison) stop("a write behind the end of an allocation");
  }
}

}  // namespace

AddressSpace::AddressSpace() {
  void* range = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) stop("no address space of 256 GiB (ulimit -v?)");
  begin_ = reinterpret_cast<uintptr_t>(range);
  next_ = begin_;
}

uintptr_t AddressSpace::map(Device* device, int fd, size_t bytes, bool imported) {
  const size_t mapping_bytes = round_up(bytes, kPage);
  const MutexLock lock(mutex_);
  const uintptr_t mapping = next_ + kPage;
  if (mapping + mapping_bytes + kPage > begin_ + kBytes) stop("all addresses were used once");
  void* mapped =
      mmap(reinterpret_cast<void*>(mapping), mapping_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
  if (mapped == MAP_FAILED) return 0;
  next_ = mapping + mapping_bytes;
  const uintptr_t address = mapping + mapping_bytes - round_up(bytes, kAlign);
  allocations_[address] = {device, address, bytes, mapping, mapping_bytes, fd, imported};
  return address;
}

uintptr_t AddressSpace::allocate(Device* device, size_t bytes) {
  const int fd = memfd_create("simulated-gpu", MFD_CLOEXEC);
  if (fd < 0) return 0;
  const size_t file_bytes = round_up(bytes, kPage);
  const uintptr_t address = ftruncate(fd, static_cast<off_t>(file_bytes)) == 0 ? map(device, fd, bytes, false) : 0;
  if (address == 0) {
    close(fd);
    return 0;
  }
  std::memset(reinterpret_cast<void*>(find(address)->mapping), kPoison, file_bytes);
  return address;
}

uintptr_t AddressSpace::import(Device* device, int fd, size_t bytes) {
  if (const uintptr_t address = import_again(device, fd); address != 0) {
    close(fd);
    return address;
  }
  const uintptr_t address = map(device, fd, bytes, true);
  if (address == 0) close(fd);
  return address;
}

uintptr_t AddressSpace::import_again(Device* device, int fd) {
  struct stat wanted;
  if (fstat(fd, &wanted) != 0) return 0;
  const MutexLock lock(mutex_);
  for (auto& [address, allocation] : allocations_) {
    struct stat known;
    if (!allocation.imported || allocation.device != device || fstat(allocation.fd, &known) != 0) continue;
    if (known.st_ino != wanted.st_ino || known.st_dev != wanted.st_dev) continue;
    ++allocation.opened;
    return address;
  }
  return 0;
}

bool AddressSpace::release(uintptr_t address, bool imported) {
  const MutexLock lock(mutex_);
  const auto found = allocations_.find(address);
  if (found == allocations_.end() || found->second.imported != imported) return false;
  if (--found->second.opened > 0) return true;
  const Allocation& allocation = found->second;
  if (!imported) check_slack(allocation);
  void* const reserved = mmap(reinterpret_cast<void*>(allocation.mapping), allocation.mapping_bytes, PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (reserved == MAP_FAILED) std::abort();  // the pages would stay readable
  close(allocation.fd);
  allocations_.erase(found);
  return true;
}

std::optional<AddressSpace::Allocation> AddressSpace::find(uintptr_t address) const {
  const MutexLock lock(mutex_);
  auto after = allocations_.upper_bound(address);
  if (after == allocations_.begin()) return std::nullopt;
  const Allocation& allocation = std::prev(after)->second;
  if (address - allocation.address >= allocation.bytes) return std::nullopt;
  return allocation;
}

bool AddressSpace::is_usable(uintptr_t address, size_t bytes) const {
  if (!contains(address)) return address != 0;
  const std::optional<Allocation> allocation = find(address);
  return allocation && bytes <= allocation->address + allocation->bytes - address;
}

int AddressSpace::count() const {
  const MutexLock lock(mutex_);
  return static_cast<int>(allocations_.size());
}

bool AddressSpace::pin(uintptr_t address, size_t bytes) {
  const MutexLock lock(mutex_);
  for (const auto& [begin, pin] : pins_) {
    if (address / kPage < round_up(begin + pin.bytes, kPage) / kPage &&
        begin / kPage < round_up(address + bytes, kPage) / kPage) {
      return false;
    }
  }
  pins_[address] = {bytes, ++newest_pin_};
  return true;
}

bool AddressSpace::unpin(uintptr_t address) {
  const MutexLock lock(mutex_);
  return pins_.erase(address) == 1;
}

uint64_t AddressSpace::pin_of(uintptr_t address, size_t bytes) const {
  const MutexLock lock(mutex_);
  auto after = pins_.upper_bound(address);
  if (after == pins_.begin()) return 0;
  const auto& [begin, pin] = *std::prev(after);
  return address + bytes <= begin + pin.bytes ? pin.number : 0;
}

bool AddressSpace::is_partly_pinned(uintptr_t address, size_t bytes) const {
  return bytes > 0 && !is_pinned(address, bytes) && (is_pinned(address, 1) || is_pinned(address + bytes - 1, 1));
}

int AddressSpace::pins() const {
  const MutexLock lock(mutex_);
  return static_cast<int>(pins_.size());
}

}  // namespace gradrail::simulated
