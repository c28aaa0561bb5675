#include "transport/shm/memory_region.h"

#include <sys/stat.h>

#include <cerrno>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "transport/capabilities.h"
#include "transport/shm/descriptor.h"
#include "transport/shm/native_error.h"

namespace gradrail::transport::shm {
namespace {

constexpr const char* kRemedy = "allocate it with SharedMemory::create and register all of it";

absl::Status invalid(std::string_view why) {
  return absl::InvalidArgumentError(fmt::format("shm: {}: {}", why, kRemedy));
}

/// Whether `data` is where the file behind `fd` is mapped from its beginning. A peer maps the file, so a span that is
/// something else would send its bytes to the wrong place without any error.
absl::Status check_start_of_file(const std::byte* data, int fd) {
  struct stat file {};
  if (fstat(fd, &file) != 0) return from_errno(errno, "fstat");
  const auto address = reinterpret_cast<uintptr_t>(data);
  std::ifstream maps("/proc/self/maps");
  if (!maps) return from_errno(errno, "/proc/self/maps (is /proc mounted?)");
  for (std::string line; std::getline(maps, line);) {
    uint64_t begin = 0, end = 0, offset = 0, inode = 0;
    constexpr const char* kFormat = "%" SCNx64 "-%" SCNx64 " %*s %" SCNx64 " %*s %" SCNu64;
    if (std::sscanf(line.c_str(), kFormat, &begin, &end, &offset, &inode) != 4) continue;
    if (address < begin || address >= end) continue;
    if (inode != file.st_ino || offset + (address - begin) != 0) break;
    return absl::OkStatus();
  }
  return invalid("span does not begin where its file does");
}

absl::Status check_shareable(MemorySpan span) {
  GRADRAIL_RETURN_IF_ERROR(check_memory("shm", span));
  if (span.fd < 0) return invalid("memory without a file");
  const absl::Status sealed = check_sealed(span.fd, span.bytes);
  return sealed.ok() ? check_start_of_file(span.data, span.fd) : invalid(message_of(sealed));
}

RegionKey key_of(const MemorySpan& span, Access access, const common::RegionId& id) {
  RegionKey key;
  key.access = static_cast<uint8_t>(access);
  key.id = id.number | (uint64_t{id.epoch} << 32);
  key.bytes = span.bytes;
  key.token = id.token;
  return key;
}

}  // namespace

absl::StatusOr<int> find_descriptor(const common::RegionTable& table, const RegionKey& shown) {
  const absl::StatusOr<const MemoryRegion*> region =
      table.find("fetch", {static_cast<uint32_t>(shown.id), static_cast<uint32_t>(shown.id >> 32), shown.token});
  // Every reason gets the same answer: a guesser gains no information. The whole key is compared: a holder must not
  // raise the access or the size in it.
  if (!region.ok() || (*region)->key() != encode(shown)) {
    return absl::PermissionDeniedError(fmt::format("shm: wrong or withdrawn key of region {}", shown.id));
  }
  GRADRAIL_CHECK((*region)->span().fd >= 0);  // check_shareable() refuses memory without a file
  return (*region)->span().fd;
}

ShmRegion::ShmRegion(common::RegionTable& table, MemorySpan span, Access access, const common::RegionId& id)
    : MemoryRegion(span, access, encode(key_of(span, access, id))), table_(table), number_(id.number) {}

absl::StatusOr<std::unique_ptr<MemoryRegion>> ShmRegion::create(common::RegionTable& table, MemorySpan span,
                                                                Access access) {
  // Memory without remote access may be any host memory, such as a peer's region that map() put into this process.
  const bool private_memory = access == Access::local && span.kind == MemoryKind::host && span.fd < 0;
  if (!private_memory) GRADRAIL_RETURN_IF_ERROR(check_shareable(span));
  return std::make_unique<ShmRegion>(table, span, access);
}

}  // namespace gradrail::transport::shm
