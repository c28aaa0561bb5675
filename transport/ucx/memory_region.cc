#include "transport/ucx/memory_region.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "transport/capabilities.h"
#include "transport/common/byte_codec.h"
#include "transport/common/slice.h"
#include "transport/ucx/native_error.h"

namespace gradrail::transport::ucx {
namespace {

// Key:  "ucx1" | region u32 | context u64 | token u64 | bytes u64 | access u32 | crc32c of all before
//       access: bits 0 and 1 as in Access, bit 2: the memory of a GPU
constexpr std::string_view kKeyMagic = "ucx1";
constexpr size_t kKeyBytes = 40;
constexpr uint32_t kOnGpu = 4;
constexpr uint32_t kAccessBits = 7;

unsigned protection(Access access) {
  unsigned flags = UCP_MEM_MAP_PROT_LOCAL_READ | UCP_MEM_MAP_PROT_LOCAL_WRITE;
  // The peer's device reads data that is sent by rendezvous.
  flags |= UCP_MEM_MAP_PROT_REMOTE_READ;
  if (allows(access, Access::remote_write)) flags |= UCP_MEM_MAP_PROT_REMOTE_WRITE;
  return flags;
}

}  // namespace

std::string RegionKey::encode() const {
  return common::ByteWriter(kKeyMagic)
      .number(region)
      .number(context)
      .number(token)
      .number(bytes)
      .number(static_cast<uint32_t>(access) | (kind == MemoryKind::cuda ? kOnGpu : 0))
      .seal()
      .take();
}

absl::StatusOr<RegionKey> RegionKey::parse(std::string_view key) {
  GRADRAIL_ASSIGN_OR_RETURN(common::ByteReader in, common::open_key("ucx", kKeyMagic, kKeyBytes, key));
  RegionKey parsed;
  parsed.region = in.number<uint32_t>();
  parsed.context = in.number<uint64_t>();
  parsed.token = in.number<uint64_t>();
  parsed.bytes = in.number<uint64_t>();
  const auto access = in.number<uint32_t>();
  // A bit of a later version must not be ignored.
  if (access > kAccessBits) return absl::InvalidArgumentError("ucx: region key with unknown access bits");
  parsed.access = static_cast<Access>(access & 3);
  parsed.kind = (access & kOnGpu) != 0 ? MemoryKind::cuda : MemoryKind::host;
  return parsed;
}

Region::Region(RegionTable& table, MemorySpan memory, Access access, ucp_mem_h handle)
    : Region(table, memory, access, handle, table.table_.add(this)) {}

Region::Region(RegionTable& table, MemorySpan memory, Access access, ucp_mem_h handle, const common::RegionId& id)
    : MemoryRegion(memory, access,
                   RegionKey{table.context_id_, id.number, id.token, memory.bytes, access, memory.kind}.encode()),
      table_(table),
      number_(id.number),
      handle_(handle) {}

Region::~Region() { table_.remove(*this); }

ucs_status_ptr_t Region::receive(ucp_worker_h worker, void* message, std::byte* target, size_t bytes,
                                 ucp_am_recv_data_nbx_callback_t done, void* user) const {
  GRADRAIL_CHECK(target >= span().data &&
                 common::is_inside(static_cast<uint64_t>(target - span().data), bytes, span().bytes));
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FIELD_MEMH;
  param.memory_type = memory_type();
  param.memh = handle_;
  param.cb.recv_am = done;
  param.user_data = user;
  return ucp_am_recv_data_nbx(worker, message, target, bytes, &param);
}

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
  return absl::FailedPreconditionError(
      fmt::format("ucx: no RDMA device registers {} bytes of GPU {} by {} (is nvidia_peermem loaded, or does the "
                  "device driver import dma-bufs? UCX_LOG_LEVEL=info shows more)",
                  memory.bytes, memory.gpu->ordinal(), name_of(memory.gpu->way())));
}

absl::StatusOr<std::unique_ptr<MemoryRegion>> RegionTable::add(MemorySpan memory, Access access) {
  GRADRAIL_RETURN_IF_ERROR(check_memory("ucx", memory, worker_.gpu()));
  ucp_mem_h handle = nullptr;
  if (memory.bytes > 0) {
    GRADRAIL_ASSIGN_OR_RETURN(handle, map(memory, access));
  }
  return std::make_unique<Region>(*this, memory, access, handle);
}

void RegionTable::remove(const Region& region) {
  table_.remove(region.number_);
  // The order matters: no new access, the end of the running ones, then the end of the registration.
  before_end_(region);
  if (region.handle_ != nullptr) ucp_mem_unmap(worker_.context(), region.handle_);
}

absl::StatusOr<const Region*> RegionTable::resolve(const Header& header, uint64_t bytes, Access wanted) const {
  GRADRAIL_ASSIGN_OR_RETURN(
      const MemoryRegion* const
          region,  // The header has no epoch: the token alone distinguishes the key of an earlier region.
      table_.resolve(kind_name(header.kind), {header.region, table_.epoch_of(header.region), header.region_token},
                     {.offset = header.offset, .bytes = bytes, .wanted = wanted}));
  return static_cast<const Region*>(region);
}

}  // namespace gradrail::transport::ucx
