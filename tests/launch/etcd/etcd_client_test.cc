#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <future>

#include "fmt/format.h"
#include "gradrail/clock.h"
#include "launch/etcd/local_host.h"
#include "tests/launch/etcd/fake_etcd.h"

namespace gradrail::launch {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kAbsent = "http://127.0.0.1:1";  // a port on which no process listens

std::string text(const absl::Status& status) { return std::string(status.message()); }

/// Two endpoints, each an etcd of its own.
class EtcdClientTest : public ::testing::Test {
 protected:
  void answer_with(grpc::StatusCode code, const std::string& words) {
    a_.before = [=](const std::string&, int) { return grpc::Status(code, words); };
  }
  FakeEtcd a_, b_;
};

TEST_F(EtcdClientTest, TheEndpointThatAnsweredIsAskedFirst) {
  answer_with(grpc::StatusCode::UNAVAILABLE, "no leader");
  const auto both = *Etcd::open({a_.url(), b_.url()});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(both->list("/k")->revision, 1);
  EXPECT_EQ(a_.requests(), 1);
  EXPECT_EQ(b_.requests(), 3);
  EXPECT_EQ(both->local_host(), "127.0.0.1");
}

TEST_F(EtcdClientTest, AnEndpointThatReturnsIsUsedAtOnce) {
  auto first = std::make_unique<FakeEtcd>();
  const std::string url = first->url();
  first.reset();
  const auto etcd = *Etcd::open({url});
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(etcd->list("/k").ok());
  const FakeEtcd again(url.substr(url.rfind(':') + 1));
  const auto listing = etcd->list("/k");
  EXPECT_TRUE(listing.ok()) << listing.status();
}

TEST_F(EtcdClientTest, AMistakeIsNamedRatherThanAnAbsence) {
  answer_with(grpc::StatusCode::UNIMPLEMENTED, "unknown service etcdserverpb.KV");
  const absl::Status status = (*Etcd::open({kAbsent, a_.url()}))->list("/k").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(text(status), StartsWith(fmt::format("etcd at {}: the server is not etcd", a_.url())));
  EXPECT_THAT(text(status), HasSubstr("unknown service"));
}

TEST_F(EtcdClientTest, AnAbsentEndpointIsNamed) {
  const absl::Status status = (*Etcd::open({kAbsent}))->grant(5).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(text(status), StartsWith("etcd at http://127.0.0.1:1: "));
  EXPECT_THAT(text(status), HasSubstr("onnect"));
}

TEST_F(EtcdClientTest, EtcdWithoutALeaderIsTriedAgainLater) {
  for (const auto code :
       {grpc::StatusCode::UNAVAILABLE, grpc::StatusCode::DEADLINE_EXCEEDED, grpc::StatusCode::RESOURCE_EXHAUSTED}) {
    answer_with(code, "etcdserver: no leader");
    const absl::Status status = a_.client()->grant(5).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(text(status), HasSubstr("no leader"));
  }
}

TEST_F(EtcdClientTest, ASilentEtcdHasADeadline) {
  std::promise<void> end;
  a_.before = [is_over = end.get_future().share()](const std::string&, int) {
    is_over.wait();
    return std::nullopt;
  };
  EXPECT_EQ(a_.client()->keep_alive(7).status().code(), absl::StatusCode::kUnavailable);
  end.set_value();
}

TEST_F(EtcdClientTest, ARefusalIsPassedOnAndNoOtherEndpointIsAsked) {
  answer_with(grpc::StatusCode::INVALID_ARGUMENT, "etcdserver: user name is empty");
  const absl::Status status = (*Etcd::open({a_.url(), b_.url()}))->grant(5).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(text(status), fmt::format("etcd at {} refuses to grant a lease: etcdserver: user name is empty", a_.url()));
  EXPECT_EQ(b_.requests(), 0);
}

TEST_F(EtcdClientTest, ALeaseThatHasEndedIsNoError) {
  const auto etcd = a_.client();
  EXPECT_FALSE(*etcd->keep_alive(5));
  EXPECT_TRUE(etcd->revoke(5).ok());
  EXPECT_EQ(*etcd->put_if_unchanged(1, {"/k", "v", 5}), Etcd::Put::no_lease);
  EXPECT_TRUE(*etcd->keep_alive(*etcd->grant(5)));
}

TEST_F(EtcdClientTest, EmptyAnswersAreNoEtcd) {
  a_.edit = [](google::protobuf::Message& answer) { answer.Clear(); };
  const auto etcd = a_.client();
  const absl::Status status = etcd->list("/k").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(text(status), HasSubstr(a_.url() + ": the server is not etcd"));
  EXPECT_EQ(etcd->grant(5).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(*etcd->keep_alive(5));
}

TEST_F(EtcdClientTest, AWrongFileIsNamedByItsVariable) {
  ASSERT_EQ(setenv("ETCDCTL_CACERT", "/nowhere/ca.pem", 1), 0);
  const absl::Status status = Etcd::open({"https://127.0.0.1:1"}).status();
  ASSERT_EQ(unsetenv("ETCDCTL_CACERT"), 0);
  EXPECT_THAT(text(status), StartsWith("etcd at https://127.0.0.1:1: ETCDCTL_CACERT /nowhere/ca.pem: cannot be read"));
  EXPECT_TRUE(Etcd::open({"https://127.0.0.1:1"}).ok()) << "the system's authorities";
}

TEST(LocalHost, PeersOfBothFamilies) {
  EXPECT_EQ(local_host_towards("ipv4:127.0.0.1:2379"), "127.0.0.1");
  EXPECT_EQ(local_host_towards("ipv6:%5B::ffff:127.0.0.1%5D:2379"), "127.0.0.1");
  for (const char* none : {"", "unix:/tmp/x", "unknown", "ipv4:", "ipv4:1.2.3.4:x"})
    EXPECT_EQ(local_host_towards(none), "") << none;
}

}  // namespace
}  // namespace gradrail::launch
