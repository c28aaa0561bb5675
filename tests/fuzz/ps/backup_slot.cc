// A slot that a primary has put into the memory of its backup.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/crc32c.h"
#include "gradrail/cluster.h"
#include "ps/replication/backup_layout.h"
#include "tests/fuzz/fuzz.h"

namespace gradrail::ps {
namespace {

constexpr uint32_t kCapacity = 3;

bool same(const BucketState& a, const BucketState& b) {
  const auto same_done = [](const BucketState::Done& x, const BucketState::Done& y) {
    return x.worker == y.worker && x.incarnation == y.incarnation && x.step == y.step && x.staleness == y.staleness &&
           x.dropped == y.dropped && x.fresh == y.fresh;
  };
  return a.version == b.version && a.floor == b.floor && a.initialised == b.initialised &&
         std::equal(a.done.begin(), a.done.end(), b.done.begin(), b.done.end(), same_done);
}

void try_slot(const BackupLayout& layout, std::byte* slot, uint32_t bucket) {
  const absl::StatusOr<BucketState> state = layout.open(slot, bucket);
  if (!state.ok()) {
    const bool damaged = absl::IsDataLoss(state.status());
    return fuzz::check_refusal(state.status(),
                               damaged ? absl::StatusCode::kDataLoss : absl::StatusCode::kInvalidArgument, "bucket");
  }
  GRADRAIL_CHECK(state->done.size() <= kCapacity);
  for (const BucketState::Done& done : state->done) GRADRAIL_CHECK(done.worker < kMaxWorkers);
  GRADRAIL_CHECK(layout.seal(slot, bucket, *state).ok());
  const absl::StatusOr<BucketState> again = layout.open(slot, bucket);
  GRADRAIL_CHECK(again.ok() && same(*state, *again));
}

}  // namespace
}  // namespace gradrail::ps

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace gradrail;
  using namespace gradrail::ps;
  // Buckets of 16 and 4 elements.
  static const BackupLayout layout(*ShardMap::cut(20, 1, 64), 0, 1, kCapacity);
  const uint32_t bucket = bytes > 0 ? data[0] % layout.bucket_count() : 0;
  const size_t slot_bytes = layout.slot_bytes(bucket);
  alignas(64) static std::byte slot[1024];
  GRADRAIL_CHECK(slot_bytes <= sizeof(slot));
  // The slot ends with the array, so that the sanitizer finds a read behind it.
  std::byte* const begin = slot + (sizeof(slot) - slot_bytes) / 64 * 64;
  std::memset(begin, 0, slot_bytes);
  if (bytes > 1) std::memcpy(begin, data + 1, std::min(bytes - 1, slot_bytes));
  try_slot(layout, begin, bucket);
  auto* const header = reinterpret_cast<BackupHeader*>(begin);
  header->magic = BackupHeader::kMagic;
  header->bucket = bucket;
  header->crc32c = gradrail::crc32c(begin + sizeof(BackupHeader), slot_bytes - sizeof(BackupHeader));
  try_slot(layout, begin, bucket);
  return 0;
}
