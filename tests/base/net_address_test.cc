#include "base/net_address.h"

#include <sys/socket.h>

#include <cerrno>

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

TEST(NetAddress, KeepsTheScopeOfALinkLocalAddress) {
  EXPECT_EQ(address_of("fe80::1%lo").text(), "[fe80::1%lo]:2222");
  EXPECT_EQ(address_of("fe80::1%lo").host(), "fe80::1%lo");
  EXPECT_TRUE(is_ip_address("fe80::1%lo", AF_INET6));
  EXPECT_FALSE(is_ip_address("10.0.0.1%lo", AF_INET));
}

TEST(NetAddress, APeerGetsNoScopeAndAddsItsOwn) {
  EXPECT_EQ(without_scopes("lanes:[fe80::1%eth0]:1,[fe80::2%7]:2#key%1"), "lanes:[fe80::1]:1,[fe80::2]:2#key%1");
  EXPECT_EQ(without_scopes("10.0.0.1:1"), "10.0.0.1:1");
  EXPECT_EQ(without_scopes("gradrail%shm"), "gradrail%shm");
  const std::string via = "[fe80::9%eth1]:2222";
  EXPECT_EQ(with_scope_of(via, "lanes:[fe80::1]:1,[fd00::2]:2,[fe80::3%eth2]:3#key"),
            "lanes:[fe80::1%eth1]:1,[fd00::2]:2,[fe80::3%eth2]:3#key");
  EXPECT_EQ(with_scope_of(via, "10.0.0.1:1"), "10.0.0.1:1");
  EXPECT_EQ(with_scope_of("[fd00::1]:2222", "[fe80::1]:1"), "[fe80::1]:1");
  EXPECT_EQ(with_scope_of("host:2222", "[fe80::1]:1"), "[fe80::1]:1");
}

TEST(NetAddress, AnErrorOfASocketNamesTheCause) {
  EXPECT_THAT(socket_error_text(EADDRINUSE, address_of("127.0.0.1", 0), true),
              testing::MatchesRegex("no free port: all of net.ipv4.ip_local_port_range.* are in use.*"));
  EXPECT_THAT(socket_error_text(EADDRNOTAVAIL, address_of("127.0.0.1"), false), HasSubstr("no free port"));
  EXPECT_EQ(socket_error_text(EADDRINUSE, address_of("127.0.0.1"), true), "Address already in use");
  EXPECT_EQ(socket_error_text(EADDRNOTAVAIL, address_of("127.0.0.1", 0), true), "Cannot assign requested address");
  EXPECT_THAT(socket_error_text(EINVAL, address_of("fe80::1"), false), HasSubstr("[fe80::1%eth0]"));
  EXPECT_EQ(socket_error_text(EINVAL, address_of("fe80::1%lo"), false), "Invalid argument");
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
