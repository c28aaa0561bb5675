#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/launch/etcd/etcd.h"

namespace gradrail::tools {
namespace {

using ::testing::HasSubstr;

/// Endpoints by what they answer; those without an answer are down.
class Scripted final : public HttpPost {
 public:
  Scripted(std::map<std::string, Reply> answers, std::vector<std::string>& asked)
      : answers_(std::move(answers)), asked_(asked) {}
  absl::StatusOr<Reply> post(const std::string& url, const std::string&, Duration) override {
    const std::string host = url.substr(0, url.find("/v3/"));
    asked_.push_back(host);
    const auto found = answers_.find(host);
    if (found == answers_.end()) return absl::UnavailableError("connection refused");
    return found->second;
  }

 private:
  const std::map<std::string, Reply> answers_;
  std::vector<std::string>& asked_;
};

class EtcdClientTest : public ::testing::Test {
 protected:
  Etcd etcd(std::map<std::string, HttpPost::Reply> answers) {
    return Etcd({"http://a", "http://b"}, std::make_unique<Scripted>(std::move(answers), asked_));
  }
  static HttpPost::Reply says(const std::string& body, long code = 200) { return {code, body, "10.0.0.7"}; }
  std::vector<std::string> asked_;
};

const std::string kEmpty = R"({"header": {"revision": "9"}})";

TEST_F(EtcdClientTest, TheEndpointThatAnsweredIsAskedFirst) {
  Etcd both = etcd({{"http://b", says(kEmpty)}});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(both.list({.key = "/k"})->revision, 9);
  EXPECT_THAT(asked_, ::testing::ElementsAre("http://a", "http://b", "http://b", "http://b"));
  EXPECT_EQ(both.local_host(), "10.0.0.7");
}

TEST_F(EtcdClientTest, AMistakeIsNamedRatherThanAnAbsence) {
  Etcd both = etcd({{"http://b", says("<html>", 404)}});
  const absl::Status status = both.list({.key = "/k"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("etcd at http://b: what answers there is no etcd"));
}

TEST_F(EtcdClientTest, EtcdWithoutALeaderIsTriedAgainLater) {
  for (const auto& [body, code] : {std::pair{R"({"message": "etcdserver: no leader", "code": 14})", 503L},
                                   std::pair{R"({"message": "context deadline exceeded", "code": 4})", 504L},
                                   std::pair{"<html>bad gateway", 502L}}) {
    EXPECT_EQ(etcd({{"http://a", says(body, code)}}).grant(5).status().code(), absl::StatusCode::kUnavailable) << body;
  }
}

TEST_F(EtcdClientTest, ARefusalIsPassedOn) {
  const absl::Status status =
      etcd({{"http://a", says(R"({"message": "etcdserver: user name is empty", "code": 3})", 400)}}).grant(5).status();
  EXPECT_EQ(status.message(), "etcd refuses to grant a lease: etcdserver: user name is empty");
}

TEST_F(EtcdClientTest, WrongTypesAreNoCrash) {
  for (const char* body :
       {R"({"header": [], "kvs": {}})", R"({"header": {"revision": 9}})", "null", "[]", "\"x\"",
        R"({"header": {"revision": "-9"}})", R"({"header": {"revision": "99999999999999999999"}})"}) {
    EXPECT_FALSE(etcd({{"http://a", says(body)}}).list({.key = "/k"}).ok()) << body;
  }
  Etcd odd =
      etcd({{"http://a", says(R"({"header": {"revision": "9"}, "kvs": [7, {"key": 1, "lease": {}}, {"key": "!"}]})")}});
  const auto listing = odd.list({.key = "/k"});
  ASSERT_TRUE(listing.ok()) << listing.status();
  EXPECT_EQ(listing->entries.size(), 2u);
  Etcd strange = etcd({{"http://a", says(R"({"ID": 7, "result": [], "succeeded": "yes", "code": "5"})")}});
  EXPECT_FALSE(strange.grant(5).ok());
  EXPECT_FALSE(*strange.keep_alive("5"));
  EXPECT_EQ(*strange.put_if_unchanged({.key = "/k"}, 1, {"/k", "v", "5"}), Etcd::Put::changed);
}

}  // namespace
}  // namespace gradrail::tools
