#include "tools/doctor/proofs/proof_pair.h"

#include "base/status.h"
#include "gmock/gmock.h"
#include "tools/doctor/proofs/proof.h"

namespace gradrail::tools::doctor {
namespace {

using testing::HasSubstr;

const transport::Transport* transport_called(const char* name) {
  const absl::StatusOr<const transport::Transport*> found = transport::find_transport(name);
  EXPECT_TRUE(found.ok()) << found.status();
  return found.value_or(nullptr);
}

PairOptions over_tcp() {
  return {.transport = transport_called("tcp"), .open = {.bind_host = "127.0.0.1"}, .listen = "127.0.0.1:0"};
}

TEST(Proof, MovesAPatternBothWays) {
  const absl::StatusOr<PairResult> tcp = prove_pair(over_tcp());
  ASSERT_TRUE(tcp.ok()) << tcp.status();
  EXPECT_EQ(tcp->path, "tcp");
  EXPECT_FALSE(tcp->rdma);
  const absl::StatusOr<PairResult> shm = prove_pair({.transport = transport_called("shm")});
  ASSERT_TRUE(shm.ok()) << shm.status();
  EXPECT_THAT(shm->path, HasSubstr("shm"));
}

TEST(Proof, WhatCannotListenSaysWhy) {
  PairOptions options = over_tcp();
  options.listen = "192.0.2.1:0";  // TEST-NET-1: no host has this address
  const absl::StatusOr<PairResult> result = prove_pair(options);
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(std::string(message_of(result.status())), HasSubstr("192.0.2.1"));
}

/// Compares with a pattern that was not sent.
class WrongMemory final : public ProofMemory {
 public:
  explicit WrongMemory(std::unique_ptr<ProofMemory> memory) : memory_(std::move(memory)) {}
  MemorySpan span() const override { return memory_->span(); }
  absl::Status fill(uint32_t seed) override { return memory_->fill(seed); }
  absl::Status compare(uint32_t seed) override { return memory_->compare(seed + 1); }

 private:
  std::unique_ptr<ProofMemory> memory_;
};

TEST(Proof, OtherBytesAreFound) {
  PairOptions options = over_tcp();
  options.memory = [](const transport::Context& context) -> absl::StatusOr<std::unique_ptr<ProofMemory>> {
    GRADRAIL_ASSIGN_OR_RETURN(auto memory, host_memory(context));
    return absl::StatusOr<std::unique_ptr<ProofMemory>>(std::make_unique<WrongMemory>(std::move(memory)));
  };
  const absl::StatusOr<PairResult> result = prove_pair(options);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDataLoss) << result.status();
}

TEST(Proof, MemoryThatCannotBeHadIsTheReason) {
  PairOptions options = over_tcp();
  options.memory = [](const transport::Context&) -> absl::StatusOr<std::unique_ptr<ProofMemory>> {
    return absl::UnimplementedError("takes none");
  };
  EXPECT_EQ(prove_pair(options).status(), absl::UnimplementedError("takes none"));
}

TEST(Pattern, EverySeedDiffersEverywhere) {
  for (size_t i = 0; i < kProofBytes; ++i) ASSERT_NE(proof_pattern(1, i), proof_pattern(2, i)) << i;
}

}  // namespace
}  // namespace gradrail::tools::doctor
