// The parts of the ucx transport that need no UCX underneath: handshakes, headers, keys, and the order of arrivals.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "transport/ucx/arrivals.h"
#include "transport/ucx/device/lanes.h"
#include "transport/ucx/device/settings.h"
#include "transport/ucx/handshake.h"
#include "transport/ucx/memory_region.h"
#include "transport/ucx/wire.h"

namespace gradrail::transport::ucx {
namespace {

Handshake some_handshake(size_t address_bytes) {
  return {.context = 0x1122334455667788,
          .connection = 7,
          .token = 0xfedcba9876543210,
          .ucx_major = 1,
          .ucx_minor = 13,
          .worker_address = std::string(address_bytes, 'a')};
}

TEST(UcxHandshake, comes_through_frames_of_any_size) {
  for (const size_t address_bytes : {size_t{1}, size_t{300}, size_t{20'000}}) {
    const std::string text = encode(some_handshake(address_bytes));
    std::string joined;
    const std::vector<std::string> frames = frames_of(FrameKind::handshake, text, 100);
    for (size_t i = 0; i < frames.size(); ++i) {
      ASSERT_LE(frames[i].size(), 100u);
      const auto frame = parse_frame(frames[i]);
      ASSERT_TRUE(frame.ok()) << frame.status();
      EXPECT_EQ(frame->more, i + 1 < frames.size());
      joined += frame->text;
    }
    const auto handshake = parse_handshake(joined, 1, 13);
    ASSERT_TRUE(handshake.ok()) << handshake.status();
    EXPECT_EQ(handshake->context, 0x1122334455667788u);
    EXPECT_EQ(handshake->connection, 7u);
    EXPECT_EQ(handshake->token, 0xfedcba9876543210u);
    EXPECT_EQ(handshake->worker_address, std::string(address_bytes, 'a'));
  }
}

TEST(UcxHandshake, every_changed_byte_and_every_cut_is_refused) {
  const std::string good = encode(some_handshake(40));
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    EXPECT_FALSE(parse_handshake(bad, 1, 13).ok()) << "byte " << i;
    EXPECT_FALSE(parse_handshake(good.substr(0, i), 1, 13).ok()) << "cut at " << i;
  }
}

TEST(UcxHandshake, another_ucx_is_named) {
  const auto handshake = parse_handshake(encode(some_handshake(40)), 1, 18);
  EXPECT_EQ(handshake.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(handshake.status().message().find("UCX 1.13 there and UCX 1.18 here"), absl::string_view::npos);
}

TEST(UcxHandshake, frames_of_others_are_refused) {
  const std::string good = frames_of(FrameKind::disconnect, "bye", 100).front();
  for (size_t i = 0; i < 4; ++i) {
    std::string bad = good;
    bad[i] = '?';
    EXPECT_EQ(parse_frame(bad).status().code(), absl::StatusCode::kDataLoss) << i;
  }
  for (size_t i = 0; i < 8; ++i) EXPECT_FALSE(parse_frame(good.substr(0, i)).ok()) << "cut at " << i;
  std::string version = good;
  version[4] = 9;
  EXPECT_EQ(parse_frame(version).status().code(), absl::StatusCode::kFailedPrecondition);
  std::string kind = good;
  kind[6] = 4;
  EXPECT_FALSE(parse_frame(kind).ok());
}

TEST(UcxWire, headers_come_back_as_they_were) {
  for (const MessageKind kind :
       {MessageKind::put, MessageKind::message, MessageKind::get_request, MessageKind::get_data, MessageKind::hello}) {
    const Header header = {.kind = kind,
                           .notify = kind == MessageKind::put,
                           .wants_rendezvous = kind == MessageKind::get_request,
                           .connection = 1,
                           .token = 2,
                           .sequence = 3,
                           .region = 4,
                           .region_token = 5,
                           .offset = UINT64_MAX,
                           .value = 7,
                           .length = kind == MessageKind::get_request ? 8u : 0u};
    const HeaderBytes bytes = encode(header);
    const auto decoded = decode(absl::MakeConstSpan(bytes).first(header.bytes()));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(encode(*decoded), bytes);
    EXPECT_EQ(decoded->wants_rendezvous, header.wants_rendezvous);
    for (size_t cut = 0; cut < header.bytes(); ++cut) {
      EXPECT_FALSE(decode(absl::MakeConstSpan(bytes).first(cut)).ok()) << cut;
    }
  }
}

TEST(UcxWire, unknown_kinds_and_flags_are_refused) {
  HeaderBytes bytes = encode(Header{.kind = MessageKind::message});
  const auto parse = [&] { return decode(absl::MakeConstSpan(bytes).first(kHeaderBytes)).ok(); };
  EXPECT_TRUE(parse());
  bytes[1] = std::byte{1};
  EXPECT_FALSE(parse()) << "only puts notify";
  bytes[1] = std::byte{2};
  EXPECT_FALSE(parse()) << "only gets ask for a rendezvous";
  bytes[0] = static_cast<std::byte>(MessageKind::put);
  EXPECT_FALSE(parse()) << "only gets ask for a rendezvous";
  bytes[0] = static_cast<std::byte>(MessageKind::message);
  bytes[1] = std::byte{0};
  bytes[2] = std::byte{1};
  EXPECT_FALSE(parse());
  bytes[2] = std::byte{0};
  for (const int kind : {0, 6, 255}) {
    bytes[0] = static_cast<std::byte>(kind);
    EXPECT_FALSE(parse()) << kind;
  }
}

TEST(UcxArrivals, a_put_waits_only_for_an_older_one_to_the_same_bytes) {
  std::byte memory[100];
  Arrivals arrivals;
  const auto add = [&](size_t offset, size_t bytes) {
    Arrival* const arrival = arrivals.push();
    arrival->target = memory + offset;
    arrival->bytes = bytes;
    arrival->state = Arrival::State::waiting;
    return arrival;
  };
  Arrival* const first = add(0, 50);
  EXPECT_FALSE(arrivals.must_wait(*first));
  first->state = Arrival::State::moving;
  EXPECT_FALSE(arrivals.must_wait(*add(50, 50))) << "touches, but does not overlap";
  Arrival* const over = add(49, 1);
  EXPECT_TRUE(arrivals.must_wait(*over));
  first->state = Arrival::State::moved;
  EXPECT_FALSE(arrivals.must_wait(*over));
}

TEST(UcxArrivals, a_sender_that_does_not_keep_to_the_window_is_noticed) {
  Arrivals arrivals;
  arrivals.push()->state = Arrival::State::moving;
  for (uint32_t i = 1; i < kPutWindow; ++i) arrivals.push()->state = Arrival::State::done;
  EXPECT_EQ(arrivals.push(), nullptr);
  arrivals.front().state = Arrival::State::moved;
  EXPECT_NE(arrivals.push(), nullptr) << "the sender has received that the oldest is done";
}

TEST(UcxLanes, the_lanes_that_carry_are_read_out_of_ucx_s_text) {
  const Lanes rc = parse_lanes(
      "# UCP endpoint\n#   peer: x\n"
      "#                 lane[0]:  0:rc_verbs/rxe0:1.0 md[0]       -> md[0]/ib/sysdev[255] am am_bw#0 wireup\n");
  EXPECT_EQ(rc.text, "rc_verbs/rxe0:1");
  EXPECT_TRUE(rc.rdma);
  const Lanes mixed = parse_lanes(
      "#                 lane[0]:  0:tcp/eth0.0 md[0]   -> md[0]/tcp/sysdev[255] am keepalive\n"
      "#                 lane[1]:  5:rc_mlx5/mlx5_0:1.0 md[4] -> md[4]/ib/sysdev[1] rma_bw#0\n");
  EXPECT_EQ(mixed.text, "tcp/eth0 + rc_mlx5/mlx5_0:1");
  EXPECT_FALSE(mixed.rdma) << "messages go over tcp";
  const Lanes shm = parse_lanes(
      "#                 lane[0]:  3:posix/memory.0 md[2]  -> md[2]/posix/sysdev[255] am wireup keepalive\n"
      "#                 lane[1]:  4:cma/memory.0 md[3]    -> md[3]/cma/sysdev[255] rma_bw#0\n");
  EXPECT_EQ(shm.text, "posix/memory + cma/memory");
  EXPECT_FALSE(shm.rdma);
  EXPECT_FALSE(parse_lanes("").rdma);
}

TEST(UcxLanes, devices_are_read_out_of_ucx_s_text) {
  std::string names;
  EXPECT_FALSE(parse_resources("#      resource 0  :  md 0  dev 0  flags -- tcp/lo\n", &names));
  EXPECT_EQ(names, "tcp/lo");
  EXPECT_TRUE(parse_resources("#      resource 1  :  md 1  dev 1  flags -- rc_verbs/rxe0:1\n", &names));
}

TEST(UcxKeys, say_whether_a_gpu_holds_the_region) {
  for (const MemoryKind kind : {MemoryKind::host, MemoryKind::cuda}) {
    const auto key = RegionKey::parse(RegionKey{.access = Access::remote_read_write, .kind = kind}.encode());
    ASSERT_TRUE(key.ok()) << key.status();
    EXPECT_EQ(key->kind, kind);
    EXPECT_EQ(key->access, Access::remote_read_write);
  }
}

std::string value_of(const std::vector<Setting>& all, const std::string& name) {
  for (const Setting& each : all) {
    if (each.name == name) return each.value;
  }
  return "";
}

TEST(UcxSettings, hosts_without_gpus_are_asked_for_nothing_of_theirs) {
  const std::vector<Setting> without = settings({.rdma_only = true}, {});
  EXPECT_EQ(value_of(without, "RNDV_SCHEME"), "");
  EXPECT_EQ(value_of(settings({}, {}, {.has_driver = true}), "RNDV_SCHEME"), "get_zcopy");
  if (std::getenv("UCX_TLS") != nullptr) return;  // the user's word counts
  EXPECT_EQ(value_of(without, "TLS"), "rc,dc");
  EXPECT_EQ(value_of(settings({.rdma_only = true}, {}, {.has_driver = true}), "TLS"), "rc,dc,cuda_copy");
}

TEST(UcxGpuTransferSupport, no_cuda_memory_is_a_reason_of_ucx_or_of_the_host) {
  const GpuTransferSupport unaware = gpu_transfers(UCS_BIT(UCS_MEMORY_TYPE_HOST), {.has_driver = true});
  const GpuTransferSupport no_driver = gpu_transfers(UCS_BIT(UCS_MEMORY_TYPE_HOST), {});
  for (const NicGpuTransfer way : {NicGpuTransfer::dma_buf, NicGpuTransfer::peer_memory}) {
    EXPECT_NE(unaware.why_not(way).find("built with CUDA"), std::string::npos) << unaware.why_not(way);
    EXPECT_NE(no_driver.why_not(way).find("libcuda.so.1"), std::string::npos) << no_driver.why_not(way);
  }
}

TEST(UcxGpuTransferSupport, one_way_at_a_time_is_promised) {
  const auto cuda = UCS_BIT(UCS_MEMORY_TYPE_CUDA) | UCS_BIT(UCS_MEMORY_TYPE_HOST);
  for (const char* const setting : {"y", "n"}) {
    setenv("UCX_CUDA_COPY_DMABUF", setting, 1);
    const GpuTransferSupport ways = gpu_transfers(cuda, {.has_driver = true, .has_peer_memory_module = true});
    EXPECT_NE(ways.takes(NicGpuTransfer::dma_buf), ways.takes(NicGpuTransfer::peer_memory)) << setting;
    unsigned major = 0, minor = 0, release = 0;
    ucp_get_version(&major, &minor, &release);
    const bool can_choose = major > 1 || minor >= 16;
    EXPECT_EQ(ways.takes(NicGpuTransfer::dma_buf), can_choose && setting[0] == 'y');
  }
  unsetenv("UCX_CUDA_COPY_DMABUF");
}

}  // namespace
}  // namespace gradrail::transport::ucx
