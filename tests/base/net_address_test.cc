#include "base/net_address.h"

#include "base/status.h"
#include "gmock/gmock.h"

namespace gradrail {
namespace {

using testing::HasSubstr;

NetAddress address_of(const std::string& host, uint16_t port = 2222) {
  const absl::StatusOr<std::vector<NetAddress>> found = resolve(host, port);
  return found.ok() ? found->front() : NetAddress{};
}

TEST(NetAddress, KeepsHostAndPort) {
  EXPECT_EQ(address_of("10.0.0.1").text(), "10.0.0.1:2222");
  EXPECT_EQ(address_of("10.0.0.1").host(), "10.0.0.1");
  EXPECT_EQ(address_of("fd00::1", 65535).text(), "[fd00::1]:65535");
  EXPECT_EQ(address_of("fd00::1").host(), "fd00::1");
}

TEST(NetAddress, DetectsLoopback) {
  for (const char* host : {"127.0.0.1", "127.8.9.10", "::1", "localhost"})
    EXPECT_TRUE(address_of(host).is_loopback()) << host;
  for (const char* host : {"10.0.0.1", "128.0.0.1", "fd00::1", "0.0.0.0", "::", ""})
    EXPECT_FALSE(address_of(host).is_loopback()) << host;
}

TEST(NetAddress, AnEmptyHostListensOnAllInterfaces) {
  const absl::StatusOr<std::vector<NetAddress>> found = resolve("", 7);
  ASSERT_TRUE(found.ok()) << found.status();
  for (const NetAddress& address : *found) EXPECT_TRUE(address.host() == "0.0.0.0" || address.host() == "::");
}

TEST(NetAddress, TheErrorNamesTheHost) {
  const absl::Status status = resolve("no-such-host.invalid", 1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(message_of(status)), HasSubstr("no-such-host.invalid"));
}

}  // namespace
}  // namespace gradrail
