#include "transport/ucx/memory_region.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/crc32c.h"
#include "base/random_bits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "transport/capabilities.h"
#include "transport/tcp/little_endian.h"
#include "transport/ucx/native_error.h"

namespace gradrail::transport::ucx {
namespace {

using tcp::load_le;
using tcp::store_le;

// Key:  "ucx1" | region u32 | context u64 | token u64 | bytes u64 | access u32 | crc32c of all before
//       access: bits 0 and 1 as in Access, bit 2: the memory of a GPU
constexpr std::string_view kKeyMagic = "ucx1";
constexpr size_t kKeyBytes = 40;
constexpr size_t kCrcOffset = kKeyBytes - 4;
constexpr uint32_t kOnGpu = 4;

unsigned protection(Access access) {
  unsigned flags = UCP_MEM_MAP_PROT_LOCAL_READ | UCP_MEM_MAP_PROT_LOCAL_WRITE;
  // The peer's device reads data that is sent by rendezvous.
  flags |= UCP_MEM_MAP_PROT_REMOTE_READ;
  if (allows(access, Access::remote_write)) flags |= UCP_MEM_MAP_PROT_REMOTE_WRITE;
  return flags;
}

}  // namespace

std::string RegionKey::encode() const {
  std::array<std::byte, kKeyBytes> out;
  std::memcpy(out.data(), kKeyMagic.data(), kKeyMagic.size());
  store_le(&out[4], region);
  store_le(&out[8], context);
  store_le(&out[16], token);
  store_le(&out[24], bytes);
  store_le(&out[32], static_cast<uint32_t>(access) | (kind == MemoryKind::cuda ? kOnGpu : 0));
  store_le(&out[kCrcOffset], crc32c(out.data(), kCrcOffset));
  return std::string(reinterpret_cast<const char*>(out.data()), out.size());
}

absl::StatusOr<RegionKey> RegionKey::parse(std::string_view key) {
  const auto* from = reinterpret_cast<const std::byte*>(key.data());
  if (key.size() != kKeyBytes || key.substr(0, 4) != kKeyMagic) {
    return absl::InvalidArgumentError("ucx: not a region key of ucx");
  }
  if (load_le<uint32_t>(from + kCrcOffset) != crc32c(from, kCrcOffset)) {
    return absl::InvalidArgumentError("ucx: damaged region key");
  }
  const auto access = load_le<uint32_t>(from + 32);
  return RegionKey{.context = load_le<uint64_t>(from + 8),
                   .region = load_le<uint32_t>(from + 4),
                   .token = load_le<uint64_t>(from + 16),
                   .bytes = load_le<uint64_t>(from + 24),
                   .access = static_cast<Access>(access & 3),
                   .kind = (access & kOnGpu) != 0 ? MemoryKind::cuda : MemoryKind::host};
}

Region::Region(RegionTable& table, uint32_t number, MemorySpan memory, Access access, std::string key, ucp_mem_h handle)
    : MemoryRegion(memory, access, std::move(key)), table_(table), number_(number), handle_(handle) {}

Region::~Region() { table_.remove(*this, number_, handle_); }

absl::StatusOr<ucp_mem_h> RegionTable::map(MemorySpan memory, Access access) const {
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_PROT |
                      UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
  params.address = memory.data;
  params.length = memory.bytes;
  params.prot = protection(access);
  params.memory_type = memory.kind == MemoryKind::cuda ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
  ucp_mem_h handle = nullptr;
  const ucs_status_t status = ucp_mem_map(worker_.context(), &params, &handle);
  if (status != UCS_OK) return registration_error(memory.bytes, status);
  if (absl::Status fit = check_device(memory, handle); !fit.ok()) {
    ucp_mem_unmap(worker_.context(), handle);
    return fit;
  }
  return handle;
}

// ucp_mem_map succeeds when no device takes the memory; UCX would copy it through the host later. The packed key for
// peers shows it. It holds the set of all devices that registered the memory, its kind, and a length and a key for
// each. The key is empty for an entry that is not a device.
bool RegionTable::is_taken_by_a_device(ucp_mem_h handle) const {
  void* packed = nullptr;
  size_t bytes = 0;
  if (ucp_rkey_pack(worker_.context(), handle, &packed, &bytes) != UCS_OK) return false;
  uint64_t all = 0;
  std::memcpy(&all, packed, std::min(bytes, sizeof(all)));
  ucp_rkey_buffer_release(packed);
  const size_t bytes_without_keys = sizeof(all) + 1 + static_cast<size_t>(std::popcount(all));
  return bytes > bytes_without_keys;
}

absl::Status RegionTable::check_device(const MemorySpan& memory, ucp_mem_h handle) const {
  if (memory.kind != MemoryKind::cuda || is_taken_by_a_device(handle)) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format(
      "ucx: no RDMA device registers {} bytes of GPU {} by {} (is nvidia_peermem loaded, or does the driver "
      "of the device import dma-bufs? UCX_LOG_LEVEL=info shows more)",
      memory.bytes, memory.gpu->ordinal(), name_of(memory.gpu->way())));
}

absl::StatusOr<std::unique_ptr<MemoryRegion>> RegionTable::add(MemorySpan memory, Access access) {
  GRADRAIL_RETURN_IF_ERROR(check_memory("ucx", memory, worker_.gpu()));
  ucp_mem_h handle = nullptr;
  if (memory.bytes > 0) {
    const absl::StatusOr<ucp_mem_h> mapped = map(memory, access);
    if (!mapped.ok()) return mapped.status();
    handle = *mapped;
  }
  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  const uint32_t number = free_.back();
  free_.pop_back();
  const RegionKey key = {context_id_, number, random_bits(), memory.bytes, access, memory.kind};
  auto region = std::make_unique<Region>(*this, number, memory, access, key.encode(), handle);
  slots_[number] = {region.get(), key.token};
  return region;
}

void RegionTable::remove(const Region& region, uint32_t number, ucp_mem_h handle) {
  slots_[number] = {};
  before_end_(region);
  free_.push_back(number);
  if (handle != nullptr) ucp_mem_unmap(worker_.context(), handle);
}

absl::StatusOr<const Region*> RegionTable::resolve(const Header& header, uint64_t bytes, Access wanted) const {
  const auto refuse = [&](std::string_view why) {
    return absl::PermissionDeniedError(fmt::format("{} {}", kind_name(header.kind), why));
  };
  if (header.region >= slots_.size()) return refuse("to a region that does not exist");
  const Slot& slot = slots_[header.region];
  if (slot.region == nullptr) return refuse("to a region that is no longer registered");
  if (slot.token != header.region_token) return refuse("with a wrong key");
  if (!allows(slot.region->access(), wanted)) {
    return refuse(wanted == Access::remote_write ? "to a region not remotely writable"
                                                 : "from a region not remotely readable");
  }
  const size_t size = slot.region->span().bytes;
  if (header.offset > size || bytes > size - header.offset) {
    return refuse(fmt::format("outside region (offset {}, length {}, region {} bytes)", header.offset, bytes, size));
  }
  return slot.region;
}

}  // namespace gradrail::transport::ucx
