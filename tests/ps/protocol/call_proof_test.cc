#include "ps/protocol/call_proof.h"

#include <gmock/gmock.h>

#include <set>

#include "base/random_bits.h"

namespace gradrail::ps {
namespace {

using ::testing::HasSubstr;

const std::string kSecret = "a secret of this job";

void introduce(CallProver& prover, const CallChecker& checker) {
  const std::string challenge = checker.new_challenge();
  ASSERT_TRUE(prover.set_up(challenge, checker.answer(prover.client_challenge(), challenge)).ok());
}

TEST(CallProof, AProofIsGoodForOneCallOfOneMethod) {
  CallChecker checker(kSecret);
  CallProver prover(kSecret);
  introduce(prover, checker);
  const std::string proof = prover.proof_of("Join");
  EXPECT_THAT(std::string(checker.check(proof, "Stats").message()), HasSubstr("another one"));
  EXPECT_TRUE(checker.check(proof, "Join").ok()) << "a refused call uses no number";
  EXPECT_THAT(std::string(checker.check(proof, "Join").message()), HasSubstr("made before"));
}

TEST(CallProof, CallsMayOvertakeEachOtherButNotFarAndNotTwice) {
  CallChecker checker(kSecret);
  CallProver prover(kSecret);
  introduce(prover, checker);
  std::vector<std::string> proofs;
  for (int i = 0; i < 200; ++i) proofs.push_back(prover.proof_of("Barrier"));
  const auto good = [&](size_t i) { return checker.check(proofs[i], "Barrier").ok(); };
  EXPECT_TRUE(good(3));
  EXPECT_TRUE(good(1));
  EXPECT_FALSE(good(3));
  EXPECT_FALSE(good(1));
  EXPECT_TRUE(good(0));
  EXPECT_TRUE(good(66));
  EXPECT_FALSE(good(2)) << "64 behind: outside the window";
  EXPECT_TRUE(good(4)) << "62 behind";
  EXPECT_TRUE(good(199));
  EXPECT_FALSE(good(66));
  for (size_t i = 136; i < 199; ++i) EXPECT_TRUE(good(i)) << i;
  for (size_t i = 0; i < 200; ++i) EXPECT_FALSE(good(i)) << i;
}

TEST(CallProof, ForgeriesAreRefused) {
  CallChecker checker(kSecret);
  CallProver prover(kSecret);
  introduce(prover, checker);
  const std::string proof = prover.proof_of("Leave");
  EXPECT_TRUE(absl::IsUnauthenticated(checker.check("", "Leave")));
  for (size_t bit = 0; bit < proof.size() * 8; ++bit) {
    std::string forged = proof;
    forged[bit / 8] = static_cast<char>(forged[bit / 8] ^ (1 << bit % 8));
    ASSERT_FALSE(checker.check(forged, "Leave").ok()) << bit;
  }
  for (size_t length = 0; length < proof.size(); ++length)
    ASSERT_FALSE(checker.check(proof.substr(0, length), "Leave").ok()) << length;
  EXPECT_FALSE(checker.check(proof + "x", "Leave").ok());
  for (int i = 0; i < 10'000; ++i) ASSERT_FALSE(checker.check(random_bytes(proof.size()), "Leave").ok());
  EXPECT_TRUE(checker.check(proof, "Leave").ok()) << "none of these used its number";
}

TEST(CallProof, AnotherSecretOrAnotherServerIsRefused) {
  CallChecker ours(kSecret), other(kSecret + "?"), again(kSecret);
  CallProver prover(kSecret);
  const std::string challenge = other.new_challenge();
  EXPECT_THAT(std::string(prover.set_up(challenge, other.answer(prover.client_challenge(), challenge)).message()),
              HasSubstr("does not have this job's secret"));
  const std::string recorded = ours.new_challenge();
  EXPECT_FALSE(prover.set_up(recorded, ours.answer("another client challenge", recorded)).ok()) << "a recorded answer";
  introduce(prover, ours);
  EXPECT_TRUE(absl::IsUnavailable(again.check(prover.proof_of("Join"), "Join"))) << "the same ps after a restart";
  EXPECT_TRUE(ours.check(prover.proof_of("Join"), "Join").ok());
}

TEST(CallProof, ASecretOnOneSideOnlyIsReported) {
  CallChecker with(kSecret), without("");
  CallProver has(kSecret), has_none("");
  EXPECT_THAT(std::string(has.set_up(without.new_challenge(), "").message()), HasSubstr("has no secret"));
  const std::string challenge = with.new_challenge();
  EXPECT_THAT(std::string(has_none.set_up(challenge, with.answer(has_none.client_challenge(), challenge)).message()),
              HasSubstr("this job has a secret: give --secret-file"));
  EXPECT_TRUE(has_none.set_up("", "").ok());
  EXPECT_EQ(has_none.proof_of("Join"), "");
  EXPECT_TRUE(without.check("", "Join").ok());
}

TEST(CallProof, DifferentCutsGiveDifferentMacs) {
  std::set<std::string> macs;
  macs.insert(mac_of("k", {"ab", "c"}));
  macs.insert(mac_of("k", {"a", "bc"}));
  macs.insert(mac_of("k", {"abc"}));
  macs.insert(mac_of("k", {"abc", ""}));
  EXPECT_EQ(macs.size(), 4u);
  EXPECT_NE(data_key("secret", "token"), "token");
  EXPECT_EQ(data_key("", "token"), "token");
}

}  // namespace
}  // namespace gradrail::ps
