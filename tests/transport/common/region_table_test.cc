#include "transport/common/region_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "transport/common/imported_regions.h"
#include "transport/common/slice.h"

namespace gradrail::transport::common {
namespace {

using ::testing::HasSubstr;

class PlainRegion final : public MemoryRegion {
 public:
  PlainRegion(MemorySpan memory, Access access) : MemoryRegion(memory, access, "") {}
};

class CommonRegionTable : public ::testing::Test {
 protected:
  std::string refusal(const RegionId& id, const RemoteAccess& access) {
    const absl::Status status = table_.resolve("put", id, access).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
    return std::string(status.message());
  }
  static constexpr RemoteAccess kWrite = {.offset = 0, .bytes = 64, .wanted = Access::remote_write};

  std::vector<std::byte> memory_ = std::vector<std::byte>(64);
  PlainRegion writable_{{memory_.data(), memory_.size()}, Access::remote_write};
  PlainRegion local_{{memory_.data(), memory_.size()}, Access::local};
  RegionTable table_;
};

TEST_F(CommonRegionTable, the_holder_of_a_key_reaches_its_region) {
  const RegionId first = table_.add(&writable_);
  const RegionId second = table_.add(&local_);
  EXPECT_NE(first.token, second.token);
  EXPECT_EQ(*table_.resolve("put", first, kWrite), &writable_);
  EXPECT_EQ(*table_.find("map", first), &writable_);
}

TEST_F(CommonRegionTable, each_wrong_part_of_a_key_is_refused_with_its_reason) {
  const RegionId id = table_.add(&writable_);
  EXPECT_EQ(refusal({id.number + 1, id.epoch, id.token}, kWrite), "put to a region that does not exist");
  EXPECT_EQ(refusal({id.number, id.epoch + 1, id.token}, kWrite), "put to a region that is no longer registered");
  EXPECT_EQ(refusal({id.number, id.epoch, id.token ^ 1}, kWrite), "put with a wrong key");
}

TEST_F(CommonRegionTable, rights_are_checked) {
  const RegionId id = table_.add(&writable_);
  EXPECT_EQ(refusal(id, {.bytes = 1, .wanted = Access::remote_read}), "put from a region not remotely readable");
  const RegionId local = table_.add(&local_);
  EXPECT_EQ(refusal(local, kWrite), "put to a region not remotely writable");
  EXPECT_EQ(table_.find("map", local).status().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(CommonRegionTable, bounds_do_not_wrap) {
  const RegionId id = table_.add(&writable_);
  for (const auto& [offset, bytes] : std::vector<std::pair<uint64_t, uint64_t>>{
           {12, 53}, {65, 0}, {UINT64_MAX, 2}, {UINT64_MAX - 1, 1}, {2, UINT64_MAX}, {1ULL << 63, 1ULL << 63}}) {
    EXPECT_THAT(refusal(id, {offset, bytes, Access::remote_write}), HasSubstr("outside region")) << offset;
  }
  EXPECT_TRUE(table_.resolve("put", id, {64, 0, Access::remote_write}).ok());
}

TEST_F(CommonRegionTable, an_old_key_does_not_open_the_next_region_of_its_number) {
  const RegionId old = table_.add(&writable_);
  table_.remove(old.number);
  EXPECT_FALSE(table_.alive(old.number, old.epoch));
  EXPECT_EQ(refusal(old, kWrite), "put to a region that is no longer registered");
  const RegionId next = table_.add(&writable_);
  ASSERT_EQ(next.number, old.number) << "the number is reused";
  EXPECT_EQ(refusal({old.number, old.epoch, next.token}, kWrite), "put to a region that is no longer registered");
  EXPECT_EQ(table_.epoch_of(next.number), next.epoch);
  EXPECT_EQ(table_.epoch_of(next.number + 1), 0u);
}

TEST_F(CommonRegionTable, lists_only_registered_regions) {
  const RegionId gone = table_.add(&local_);
  const RegionId stays = table_.add(&writable_);
  table_.remove(gone.number);
  std::vector<const MemoryRegion*> seen;
  table_.for_each([&](const MemoryRegion& region) { seen.push_back(&region); });
  EXPECT_EQ(seen, std::vector<const MemoryRegion*>{&writable_});
  EXPECT_FALSE(table_.empty());
  table_.remove(stays.number);
  EXPECT_TRUE(table_.empty());
}

TEST(CommonSlice, local_slices_stay_inside_their_region) {
  std::vector<std::byte> memory(64);
  const PlainRegion region({memory.data(), memory.size()}, Access::local);
  for (const LocalSlice& good : {LocalSlice{&region, 0, 64}, LocalSlice{&region, 64, 0}, LocalSlice{}}) {
    EXPECT_TRUE(check_local("tcp", good).ok()) << good.offset;
  }
  for (const LocalSlice& bad : {LocalSlice{&region, 1, 64}, LocalSlice{&region, 65, 0}, LocalSlice{nullptr, 0, 1},
                                LocalSlice{&region, SIZE_MAX, 2}}) {
    const absl::Status status = check_local("tcp", bad);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.offset;
    EXPECT_THAT(std::string(status.message()), HasSubstr("tcp: "));
  }
  EXPECT_EQ(address_of({&region, 8, 1}), memory.data() + 8);
  EXPECT_EQ(address_of({}), nullptr);
}

TEST(CommonSlice, remote_slices_stay_inside_the_region_of_the_peer) {
  EXPECT_TRUE(check_remote("ucx", {RemoteRegion{1}, 60}, 4, 64).ok());
  const absl::Status status = check_remote("ucx", {RemoteRegion{1}, 60}, 5, 64);
  EXPECT_THAT(std::string(status.message()), HasSubstr("remote slice outside its region (offset 60, length 5"));
  EXPECT_FALSE(check_remote("ucx", {RemoteRegion{1}, UINT64_MAX}, 2, 64).ok());
}

TEST(CommonImportedRegions, zero_and_unknown_names_find_nothing) {
  ImportedRegions<int> imported;
  EXPECT_EQ(imported.find(RemoteRegion{0}), nullptr);
  const RemoteRegion first = imported.add(7);
  const RemoteRegion second = imported.add(8);
  EXPECT_EQ(*imported.find(first), 7);
  EXPECT_EQ(*imported.find(second), 8);
  EXPECT_EQ(imported.find(RemoteRegion{0}), nullptr);
  EXPECT_EQ(imported.find(RemoteRegion{3}), nullptr);
}

}  // namespace
}  // namespace gradrail::transport::common
