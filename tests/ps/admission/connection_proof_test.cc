#include "ps/admission/connection_proof.h"

#include <gmock/gmock.h>

#include "base/random_bits.h"

namespace gradrail::ps {
namespace {

using ::testing::HasSubstr;

const std::string kSecret = "a secret of this job";

absl::StatusOr<std::string> prove_to(const ConnectionChecker& checker, const std::string& secret) {
  const std::string client_challenge = new_client_challenge();
  const std::string challenge = checker.new_challenge();
  return prove_connection(secret, client_challenge, challenge, checker.answer(client_challenge, challenge));
}

std::string message_of_status(const absl::Status& status) { return std::string(status.message()); }

TEST(ConnectionProof, AProofIsGoodForOneConnection) {
  ConnectionChecker checker(kSecret);
  const std::string proof = prove_to(checker, kSecret).value();
  EXPECT_TRUE(checker.check(proof).ok());
  EXPECT_THAT(message_of_status(checker.check(proof)), HasSubstr("used before"));
  EXPECT_TRUE(checker.check(prove_to(checker, kSecret).value()).ok()) << "the next proof";
}

TEST(ConnectionProof, AChallengeExpires) {
  ConnectionChecker checker(kSecret);
  const std::string proof = prove_to(checker, kSecret).value();
  EXPECT_THAT(message_of_status(checker.check(proof, Clock::now() + std::chrono::seconds(61))), HasSubstr("too old"));
  EXPECT_TRUE(checker.check(proof, Clock::now() + std::chrono::seconds(58)).ok());
}

TEST(ConnectionProof, ForgeriesAreRefused) {
  ConnectionChecker checker(kSecret);
  const std::string proof = prove_to(checker, kSecret).value();
  EXPECT_TRUE(absl::IsUnauthenticated(checker.check("")));
  for (size_t bit = 0; bit < proof.size() * 8; ++bit) {
    std::string forged = proof;
    forged[bit / 8] = static_cast<char>(forged[bit / 8] ^ (1 << bit % 8));
    ASSERT_FALSE(checker.check(forged).ok()) << bit;
  }
  for (size_t length = 0; length < proof.size(); ++length)
    ASSERT_FALSE(checker.check(proof.substr(0, length)).ok()) << length;
  EXPECT_FALSE(checker.check(proof + "x").ok());
  for (int i = 0; i < 10'000; ++i) ASSERT_FALSE(checker.check(random_bytes(proof.size())).ok());
  EXPECT_TRUE(checker.check(proof).ok()) << "none of these has used it";
}

TEST(ConnectionProof, AnotherSecretOrAnotherServerIsRefused) {
  ConnectionChecker ours(kSecret), other(kSecret + "?"), again(kSecret);
  EXPECT_THAT(message_of_status(prove_to(other, kSecret).status()), HasSubstr("does not have this job's secret"));
  const std::string recorded = ours.new_challenge();
  EXPECT_FALSE(prove_connection(kSecret, "ours", recorded, ours.answer("another client challenge", recorded)).ok())
      << "a recorded answer";
  EXPECT_FALSE(again.check(prove_to(ours, kSecret).value()).ok()) << "the same server after a restart";
}

TEST(ConnectionProof, ASecretOnOneSideOnlyIsReported) {
  ConnectionChecker with(kSecret), without("");
  EXPECT_THAT(message_of_status(prove_to(without, kSecret).status()), HasSubstr("has no secret"));
  EXPECT_THAT(message_of_status(prove_to(with, "").status()), HasSubstr("this job has a secret: give --secret-file"));
  EXPECT_EQ(prove_to(without, "").value(), "");
  EXPECT_TRUE(without.check("").ok());
}

}  // namespace
}  // namespace gradrail::ps
