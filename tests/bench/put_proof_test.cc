// Measurements that start processes.
#include <sys/wait.h>

#include <cerrno>

#include "base/status.h"
#include "bench/peers/many_sockets.h"
#include "bench/put/transport.h"
#include "gmock/gmock.h"

namespace gradrail::bench {
namespace {

using testing::HasSubstr;

constexpr size_t kBytes = 256 << 10;

PutTransport over_tcp() { return {.name = "tcp", .bind_host = "127.0.0.1"}; }

TEST(ManySockets, TheirProcessesHaveEnded) {
  EXPECT_GT(echo_us(64, 3, 0.01).value_or(0.0), 0.0);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

TEST(PutProof, MovesAPatternBothWays) {
  const absl::StatusOr<ProvenPath> tcp = prove_puts(over_tcp(), kBytes);
  ASSERT_TRUE(tcp.ok()) << tcp.status();
  EXPECT_EQ(tcp->path, "tcp");
  EXPECT_FALSE(tcp->rdma);
  const absl::StatusOr<ProvenPath> shm = prove_puts({.name = "shm"}, kBytes);
  ASSERT_TRUE(shm.ok()) << shm.status();
  EXPECT_THAT(shm->path, HasSubstr("shm"));
}

TEST(PutProof, WorksOverIpVersion6) {
  const absl::StatusOr<ProvenPath> tcp = prove_puts({.name = "tcp", .bind_host = "::1"}, kBytes);
  if (!tcp.ok() && message_of(tcp.status()).find("assign requested address") != std::string_view::npos)
    GTEST_SKIP() << "no IPv6 loopback address";
  EXPECT_TRUE(tcp.ok()) << tcp.status();
}

/// The process that listens is not the one that reports.
TEST(PutProof, TheReasonOfTheOtherProcessIsReported) {
  // TEST-NET-1: no host has this address.
  const absl::StatusOr<ProvenPath> result = prove_puts({.name = "tcp", .bind_host = "192.0.2.1"}, kBytes);
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(std::string(message_of(result.status())), HasSubstr("192.0.2.1"));
}

/// A device that announces a put and changes one byte of it.
class DamagedMemory final : public PutMemory {
 public:
  DamagedMemory(std::unique_ptr<PutMemory> memory, size_t at) : memory_(std::move(memory)), at_(at) {}
  MemorySpan span() const override { return memory_->span(); }
  std::byte* host() override { return memory_->host(); }
  absl::Status download() override {
    host()[at_] ^= std::byte{1};
    return absl::OkStatus();
  }

 private:
  std::unique_ptr<PutMemory> memory_;
  size_t at_;
};

TEST(PutProof, EachWrongByteIsFound) {
  for (const size_t byte : {size_t{0}, kBytes / 2, kBytes - 1}) {
    PutTransport transport = over_tcp();
    transport.memory = [&](const transport::Context& context,
                           size_t bytes) -> absl::StatusOr<std::unique_ptr<PutMemory>> {
      GRADRAIL_ASSIGN_OR_RETURN(auto memory, host_memory(context, bytes));
      return absl::StatusOr<std::unique_ptr<PutMemory>>(
          std::make_unique<DamagedMemory>(std::move(memory), PutEnd::kSlots * kBytes + byte));
    };
    const absl::StatusOr<ProvenPath> result = prove_puts(transport, kBytes);
    EXPECT_EQ(result.status().code(), absl::StatusCode::kDataLoss) << result.status();
    EXPECT_THAT(std::string(message_of(result.status())), HasSubstr("byte " + std::to_string(byte) + " of"));
  }
}

TEST(PutProof, MemoryThatIsRefusedIsTheReason) {
  PutTransport transport = over_tcp();
  transport.memory = [](const transport::Context&, size_t) -> absl::StatusOr<std::unique_ptr<PutMemory>> {
    return absl::UnimplementedError("takes none");
  };
  EXPECT_EQ(prove_puts(transport, kBytes).status(), absl::UnimplementedError("takes none"));
}

TEST(PutProof, TwoSeedsDifferInEachByte) {
  for (size_t i = 0; i < kBytes; ++i) ASSERT_NE(pattern_byte(1, i), pattern_byte(2, i)) << i;
}

}  // namespace
}  // namespace gradrail::bench
