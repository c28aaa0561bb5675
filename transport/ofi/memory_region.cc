#include "transport/ofi/memory_region.h"

#include <vector>

#include "base/status.h"
#include "transport/common/byte_codec.h"

namespace gradrail::transport::ofi {
namespace {

// Key:  "ofi1" | region u32 | epoch u32 | token u64 | bytes u64 | access u8 | crc32c of all before
constexpr std::string_view kKeyMagic = "ofi1";
constexpr size_t kKeyBytes = 33;

}  // namespace

std::string RegionKey::encode() const {
  return common::ByteWriter(kKeyMagic)
      .number(region)
      .number(epoch)
      .number(token)
      .number(bytes)
      .number(static_cast<uint8_t>(access))
      .seal()
      .take();
}

absl::StatusOr<RegionKey> RegionKey::parse(std::string_view key) {
  GRADRAIL_ASSIGN_OR_RETURN(common::ByteReader in, common::open_key("ofi", kKeyMagic, kKeyBytes, key));
  const RegionKey parsed = {in.number<uint32_t>(), in.number<uint32_t>(), in.number<uint64_t>(), in.number<uint64_t>(),
                            static_cast<Access>(in.number<uint8_t>())};
  if (parsed.access > Access::remote_read_write) return absl::InvalidArgumentError("ofi: damaged region key");
  return parsed;
}

Region::Region(RegionTable& table, MemorySpan memory, Access access)
    : Region(table, memory, access, table.table_.add(this)) {}

Region::Region(RegionTable& table, MemorySpan memory, Access access, const common::RegionId& id)
    : MemoryRegion(memory, access, RegionKey{id.number, id.epoch, id.token, memory.bytes, access}.encode()),
      table_(table),
      number_(id.number) {}

Region::~Region() {
  entries_.clear();
  table_.table_.remove(number_);
}

absl::StatusOr<const Registration*> Region::registration_in(Domain& domain, bool remote) const {
  for (const Entry& entry : entries_) {
    // A registration for peers serves local transfers as well, but not the reverse (invariant 1).
    if (entry.domain == &domain && entry.remote >= remote) return &entry.registration;
  }
  GRADRAIL_ASSIGN_OR_RETURN(Registration made, domain.add(span(), remote ? access() : Access::local));
  // The pointer is valid until the next entry is added: the callers copy from it immediately.
  return &entries_.emplace_back(Entry{&domain, remote, std::move(made)}).registration;
}

absl::StatusOr<void*> Region::descriptor_in(Domain& domain) const {
  if (!domain.provider().needs_descriptors && span().kind == MemoryKind::host) return nullptr;
  GRADRAIL_ASSIGN_OR_RETURN(const Registration* const found, registration_in(domain, false));
  return found->descriptor;
}

absl::StatusOr<const Registration*> Region::open_in(Domain& domain) const { return registration_in(domain, true); }

absl::StatusOr<const Region*> RegionTable::find(const RegionKey& key) const {
  GRADRAIL_ASSIGN_OR_RETURN(const MemoryRegion* const region,
                            table_.find("request", {key.region, key.epoch, key.token}));
  // find() compares the token alone; a holder must not change the size or the rights in its key.
  if (region->key() != key.encode()) return absl::PermissionDeniedError("request with a wrong key");
  return static_cast<const Region*>(region);
}

absl::Status RegionTable::prepare(Domain& domain) const {
  absl::Status status;
  table_.for_each([&](const MemoryRegion& region) {
    // Regions with remote rights wait until a peer presents their key (invariant 1).
    if (region.access() != Access::local || !status.ok()) return;
    status = static_cast<const Region&>(region).descriptor_in(domain).status();
  });
  return status;
}

void RegionTable::forget(const Domain& domain) const {
  table_.for_each([&](const MemoryRegion& region) {
    std::erase_if(static_cast<const Region&>(region).entries_,
                  [&](const Region::Entry& entry) { return entry.domain == &domain; });
  });
}

}  // namespace gradrail::transport::ofi
