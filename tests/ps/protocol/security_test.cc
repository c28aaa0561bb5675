#include "ps/protocol/security.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/status.h"
#include "tests/ps/checkpoint/checkpoint_files.h"

namespace gradrail::ps {
namespace {

using ::testing::HasSubstr;

const std::string kSecret = "0123456789abcdef0123456789abcdef";

TEST(SecretFile, IsReadWithoutItsLineEnd) {
  const TemporaryFolder folder;
  const std::string path = folder.file("secret");
  write_bytes(path, kSecret + "\n");
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  EXPECT_EQ(*read_secret_file(path), kSecret);
  ASSERT_EQ(chmod(path.c_str(), 0400), 0);
  EXPECT_EQ(*read_secret_file(path), kSecret);
}

TEST(SecretFile, MustNotBeAccessibleToOthers) {
  const TemporaryFolder folder;
  const std::string path = folder.file("secret");
  write_bytes(path, kSecret);
  for (const mode_t mode : {0640, 0604, 0620, 0601, 0644}) {
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    const absl::Status refused = read_secret_file(path).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("chmod 600"));
  }
}

TEST(SecretFile, RootMayHandItToAGroup) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  constexpr id_t kUnprivileged = 65534;
  const TemporaryFolder folder;
  const std::string path = folder.file("secret");
  write_bytes(path, kSecret);
  ASSERT_EQ(chown(path.c_str(), 0, kUnprivileged), 0);
  ASSERT_EQ(chmod(folder.path().c_str(), 0711), 0);
  for (const mode_t mode : {0440, 0460, 0444}) {
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    EXPECT_FALSE(read_secret_file(path).ok()) << "a file of root";
    ASSERT_EQ(setegid(kUnprivileged), 0);
    ASSERT_EQ(seteuid(kUnprivileged), 0);
    EXPECT_EQ(read_secret_file(path).ok(), mode == 0440) << mode;
    ASSERT_EQ(seteuid(0), 0);
    ASSERT_EQ(setegid(0), 0);
  }
}

TEST(SecretFile, TooShortTooLongOrMissing) {
  const TemporaryFolder folder;
  const std::string path = folder.file("secret");
  EXPECT_TRUE(absl::IsNotFound(read_secret_file(path).status()));
  for (const size_t length : {size_t{0}, size_t{15}, size_t{4097}, size_t{100'000}}) {
    write_bytes(path, std::string(length, 'x'));
    ASSERT_EQ(chmod(path.c_str(), 0600), 0);
    const absl::Status refused = read_secret_file(path).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << length;
    const std::string size = length > 4096 ? "more than 4096" : std::to_string(length);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("has " + size + " characters, must have 16 to 4096"));
  }
  EXPECT_FALSE(read_secret_file(folder.path()).ok()) << "a folder";
}

TEST(Exposure, AnAddressBeyondThisHostNeedsASetting) {
  for (const char* here : {"127.0.0.1:1", "127.8.9.10:1", "[::1]:1", "localhost:1"})
    EXPECT_TRUE(check_exposure({}, here).ok()) << here;
  for (const char* beyond : {"10.0.0.1:1", "0.0.0.0:1", "[::]:1", "[fe80::1]:1", "no-such-host.invalid:1"}) {
    const absl::Status refused = check_exposure({}, beyond);
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << beyond;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("--insecure"));
    EXPECT_TRUE(check_exposure({.insecure = true}, beyond).ok());
    EXPECT_TRUE(check_exposure({.secret = kSecret}, beyond).ok());
    EXPECT_TRUE(check_exposure({.trusted_ca_file = "ca.pem"}, beyond).ok());
  }
}

TEST(Tls, InvalidFlagsAndFilesAreRefused) {
  const TemporaryFolder folder;
  EXPECT_TRUE(absl::IsInvalidArgument(validate({.cert_file = "c"})));
  EXPECT_TRUE(absl::IsInvalidArgument(validate({.key_file = "k"})));
  EXPECT_TRUE(absl::IsInvalidArgument(validate({.cert_file = "c", .key_file = "k", .client_cert_auth = true})));
  EXPECT_TRUE(absl::IsInvalidArgument(validate({.trusted_ca_file = "a", .client_cert_auth = true})));
  EXPECT_TRUE(absl::IsInvalidArgument(server_credentials({.trusted_ca_file = "a"}).status()))
      << "a ps needs a certificate";
  EXPECT_TRUE(absl::IsNotFound(channel_credentials({.trusted_ca_file = folder.file("none")}).status()));
  write_bytes(folder.file("no.pem"), "not one");
  const absl::Status refused = channel_credentials({.trusted_ca_file = folder.file("no.pem")}).status();
  EXPECT_THAT(std::string(refused.message()), HasSubstr("is no PEM file"));
}

}  // namespace
}  // namespace gradrail::ps
