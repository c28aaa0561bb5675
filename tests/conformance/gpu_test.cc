// Memory of GPUs, over the transports that take it: nothing but the transport may touch it between the driver's copies.
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>

#include "base/status.h"
#include "conformance/pattern.h"
#include "conformance/place.h"
#include "conformance/target.h"
#include "fmt/format.h"

namespace gradrail::conformance {
namespace {

using ::testing::HasSubstr;
using transport::Access;

/// Words, what devices and libraries send inline, pages, what goes by rendezvous; and the ends of more than one piece.
constexpr size_t kGpuSizes[] = {1, 8, 63, 64, 65, 255, 4 * kKiB, 8 * kKiB + 1, 64 * kKiB - 1, 64 * kKiB + 1, kMiB + 3};
constexpr size_t kMost = kMiB + 3;
constexpr size_t kTargetOffset = 4093;  ///< across pages, and at no start; as kOdd of the source

struct Pair {
  Where source;
  Where target;
};
constexpr Pair kPairs[] = {{Where::gpu, Where::host}, {Where::host, Where::gpu}, {Where::gpu, Where::gpu}};

size_t open_descriptors() {
  const std::filesystem::directory_iterator folder("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(folder), end(folder)));
}

/// Why the transport does not take GPU memory by the way under test; "" when it does.
std::string why_not(const Setup& setup) {
  return open(*setup.transport)->capabilities().gpu.why_not(tested_transfer());
}

constexpr size_t kPlaceBytes = kMost + 2 * kOdd;
constexpr uint64_t kBefore = 77;  ///< seed of what lay there

/// The part of a place that the test checks after so many bytes.
size_t seen_bytes(size_t bytes) { return kTargetOffset + bytes + kOdd; }

/// The pattern of `seed` at kTargetOffset, and around it what was there before.
void expect_only(const Place& place, size_t bytes, uint64_t seed) {
  std::vector<std::byte> expected(seen_bytes(bytes));
  fill_pattern(absl::MakeSpan(expected), kBefore);
  fill_pattern(absl::MakeSpan(expected).subspan(kTargetOffset, bytes), seed);
  const std::vector<std::byte> found = place.read(0, expected.size());
  const auto differs = std::mismatch(found.begin(), found.end(), expected.begin()).first - found.begin();
  EXPECT_EQ(differs, static_cast<ptrdiff_t>(expected.size())) << bytes << " bytes were to be at " << kTargetOffset;
}

std::string name_of(const Pair& pair) {
  const auto word = [](Where where) { return where == Where::gpu ? "GPU" : "host"; };
  return fmt::format("{} to {}", word(pair.source), word(pair.target));
}

TEST_P(Conformance, gpu_memory_comes_with_a_source_or_not_at_all) {
  Side side(*GetParam().transport);
  SharedMemory memory = *SharedMemory::create("not a GPU's", 4096);
  MemorySpan span = memory.span();
  span.kind = MemoryKind::cuda;
  const absl::Status refused = side.context().register_memory(span, Access::local).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(message_of(refused)), HasSubstr("gpu::source_for_nics"));
}

/// A way that no transport of this build supports is skipped, unless the test requires it.
class OtherWay final : public GpuMemorySource {
 public:
  explicit OtherWay(NicGpuTransfer way) : GpuMemorySource(0, way) {}
  absl::StatusOr<DmaBuf> export_dma_buf(const void*, size_t) const override {
    ADD_FAILURE() << "a dma-buf was asked for";
    return absl::InternalError("");
  }
};

TEST_P(Conformance, gpu_memory_by_a_way_that_is_closed_is_refused_with_the_remedy) {
  Side side(*GetParam().transport);
  SharedMemory memory = *SharedMemory::create("not a GPU's", 4096);
  const transport::GpuTransferSupport ways = side.context().capabilities().gpu;
  for (const NicGpuTransfer way : {NicGpuTransfer::dma_buf, NicGpuTransfer::peer_memory}) {
    if (ways.takes(way)) continue;
    const OtherWay source(way);
    MemorySpan span = memory.span();
    span.kind = MemoryKind::cuda;
    span.gpu = &source;
    const absl::Status refused = side.context().register_memory(span, Access::local).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(message_of(refused)), HasSubstr(ways.why_not(way)));
    EXPECT_THAT(std::string(message_of(refused)), HasSubstr("--gpu-direct staged"));
  }
}

TEST_P(Conformance, gpu_puts_of_every_size_arrive_whole) {
  if (const std::string reason = why_not(GetParam()); !reason.empty()) GRADRAIL_CANNOT(GetParam(), reason);
  const auto peer = start_peer(GetParam(), [](Side& side, Channel& channel) {
    Connection* const connection = side.connect(channel.receive());
    for (const Pair& pair : kPairs) {
      Place source(side, pair.source, kPlaceBytes, Access::local);
      const auto region = connection->import(side.serve_until_stopped(channel));
      ASSERT_TRUE(region.ok()) << region.status();
      for (const size_t bytes : kGpuSizes) {
        side.serve_until_stopped(channel);
        source.fill(kOdd, bytes, bytes);
        side.put(connection, source.slice(kOdd, bytes), {*region, kTargetOffset}, {.immediate = bytes, .tag = 1});
        side.await(Kind::put_done);
      }
    }
    side.serve_until_stopped(channel);
  });
  Side side(*GetParam().transport);
  peer->channel().send(side.listen());
  for (const Pair& pair : kPairs) {
    SCOPED_TRACE(name_of(pair));
    Place target(side, pair.target, kPlaceBytes, Access::remote_write);
    peer->channel().send(target.key());
    for (const size_t bytes : kGpuSizes) {
      target.fill(0, seen_bytes(bytes), kBefore);
      peer->channel().send("go");
      ASSERT_EQ(side.await(Kind::put_arrived).immediate, bytes);
      expect_only(target, bytes, bytes);
    }
  }
  peer->channel().send("end");
  peer->join();
}

TEST_P(Conformance, gpu_gets_of_every_size_arrive_whole) {
  if (const std::string reason = why_not(GetParam()); !reason.empty()) GRADRAIL_CANNOT(GetParam(), reason);
  const auto peer = start_peer(GetParam(), [](Side& side, Channel& channel) {
    Connection* const connection = side.connect(channel.receive());
    for (const Pair& pair : kPairs) {
      SCOPED_TRACE(name_of(pair));
      Place target(side, pair.target, kPlaceBytes, Access::local);
      const auto region = connection->import(side.serve_until_stopped(channel));
      ASSERT_TRUE(region.ok()) << region.status();
      for (const size_t bytes : kGpuSizes) {
        target.fill(0, seen_bytes(bytes), kBefore);
        side.serve_until_stopped(channel);
        side.must_post([&] { return connection->get(target.slice(kTargetOffset, bytes), {*region, kOdd}, bytes); });
        ASSERT_EQ(side.await(Kind::get_done).tag, bytes);
        expect_only(target, bytes, bytes);
        channel.send("next");
      }
    }
    side.serve_until_stopped(channel);
  });
  Side side(*GetParam().transport);
  peer->channel().send(side.listen());
  for (const Pair& pair : kPairs) {
    Place source(side, pair.source, kPlaceBytes, Access::remote_read);
    peer->channel().send(source.key());
    for (const size_t bytes : kGpuSizes) {
      source.fill(kOdd, bytes, bytes);
      peer->channel().send("go");
      ASSERT_EQ(side.serve_until_stopped(peer->channel()), "next");
    }
  }
  peer->channel().send("end");
  peer->join();
}

// Put i writes to a place of its own and over the previous put at the start. The last put must win, and none may be
// missing.
TEST_P(Conformance, gpu_puts_become_visible_in_the_order_posted) {
  if (const std::string reason = why_not(GetParam()); !reason.empty()) GRADRAIL_CANNOT(GetParam(), reason);
  constexpr uint64_t kPuts = 300;
  constexpr size_t kBytes = 40;
  const auto peer = start_peer(GetParam(), [](Side& side, Channel& channel) {
    const Target target = reach(side, channel);
    Place source(side, Where::gpu, (kPuts + 1) * kBytes, Access::local);
    for (uint64_t i = 1; i <= kPuts; ++i) {
      source.fill(i * kBytes, kBytes, i);
      const LocalSlice slice = source.slice(i * kBytes, kBytes);
      side.put(target.connection, slice, {target.region, i * kBytes});
      side.put(target.connection, slice, {target.region, 0}, {.immediate = i});
    }
    side.serve_until_stopped(channel);
  });
  Side side(*GetParam().transport);
  Place target(side, Where::gpu, (kPuts + 1) * kBytes, Access::remote_write);
  peer->channel().send(side.listen());
  peer->channel().send(target.key());
  for (uint64_t i = 1; i <= kPuts; ++i) ASSERT_EQ(side.await(Kind::put_arrived).immediate, i);
  const std::vector<std::byte> all = target.read(0, target.span().bytes);
  for (uint64_t i = 1; i <= kPuts; ++i) {
    EXPECT_TRUE(has_pattern(absl::MakeSpan(all).subspan(i * kBytes, kBytes), i)) << i;
  }
  EXPECT_TRUE(has_pattern(absl::MakeSpan(all).first(kBytes), kPuts)) << "the last write wins";
  peer->channel().send("end");
  peer->join();
}

TEST_P(Conformance, gpu_registrations_leave_no_descriptor_open) {
  if (const std::string reason = why_not(GetParam()); !reason.empty()) GRADRAIL_CANNOT(GetParam(), reason);
  Side side(*GetParam().transport);
  Place first(side, Where::gpu, kMiB, Access::remote_read_write);  // what libraries open once is open
  first.end_registration();
  const size_t before = open_descriptors();
  for (int i = 0; i < 10; ++i) {
    const auto region = side.context().register_memory(first.span(), Access::remote_write);
    ASSERT_TRUE(region.ok()) << region.status();
    EXPECT_EQ(open_descriptors(), before);
  }
  EXPECT_EQ(open_descriptors(), before);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ProcessConformance);

}  // namespace
}  // namespace gradrail::conformance
