#include "ps/shard/peer_table.h"

#include <gmock/gmock.h>

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "ps/protocol/control.pb.h"

namespace gradrail::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Phase = ShardPeer::Phase;

/// Records messages; a put never has room.
class FakeConnection final : public transport::Connection {
 public:
  absl::StatusOr<transport::RemoteRegion> import(std::string_view) override { return absl::UnimplementedError(""); }
  absl::Status put(transport::LocalSlice, transport::RemoteSlice, transport::PutOptions) override {
    return absl::ResourceExhaustedError("");
  }
  absl::Status get(transport::LocalSlice, transport::RemoteSlice, uint64_t) override {
    return absl::ResourceExhaustedError("");
  }
  absl::Status send(absl::Span<const std::byte> message) override {
    sent.emplace_back(reinterpret_cast<const char*>(message.data()), message.size());
    return absl::OkStatus();
  }
  absl::StatusOr<std::byte*> map(transport::RemoteRegion) override { return absl::UnimplementedError(""); }
  std::string describe() const override { return "fake a > b"; }

  std::vector<std::string> sent;
};

class FakeContext final : public transport::Context {
 public:
  explicit FakeContext(std::vector<transport::Connection*>& closed) : closed_(closed) {}
  std::string_view name() const override { return "fake"; }
  transport::Capabilities capabilities() const override { return {}; }
  absl::StatusOr<std::unique_ptr<transport::MemoryRegion>> register_memory(MemorySpan, transport::Access) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<std::string> listen(const std::string&) override { return ""; }
  absl::StatusOr<transport::Connection*> connect(const std::string&, TimePoint) override {
    return absl::UnimplementedError("");
  }
  void close(transport::Connection* connection) override { closed_.push_back(connection); }
  size_t poll(absl::Span<transport::Completion>) override { return 0; }
  int wait_fd() const override { return -1; }
  bool arm() override { return true; }

 private:
  std::vector<transport::Connection*>& closed_;
};

constexpr uint64_t kIncarnation = 7;

class PeerTableTest : public ::testing::Test {
 protected:
  PeerTableTest() {
    environment_.contexts.push_back(std::make_unique<FakeContext>(closed_));
    peers_ = std::make_unique<PeerTable>(
        environment_,
        PeerTable::Events{.on_active = [](ShardPeer&) {},
                          .on_inactive = [this](const ShardPeer& peer) { inactive_.push_back(peer.worker); }});
  }

  ShardPeer& accept() { return peers_->accept(connections_.emplace_back(), 0); }
  ShardPeer& activate(WorkerIndex worker) {
    ShardPeer& peer = accept();
    join(peer, worker);
    peer.phase = Phase::validated;
    peers_->activate(peer);
    return peer;
  }
  static void join(ShardPeer& peer, WorkerIndex worker) {
    peer.worker = worker;
    peer.incarnation = kIncarnation;
  }
  static TimePoint in(std::chrono::seconds later) { return Clock::now() + later; }

  std::vector<std::string> lost_;
  ShardEnvironment environment_{
      .options = {.name = "shard 0",
                  .on_lost = [this](WorkerIndex worker, uint64_t incarnation, const std::string& why) {
                    lost_.push_back(std::to_string(worker) + "/" + std::to_string(incarnation) + " " + why);
                  }}};
  std::vector<transport::Connection*> closed_;
  std::vector<WorkerIndex> inactive_;
  std::deque<FakeConnection> connections_;
  std::unique_ptr<PeerTable> peers_;
};

TEST_F(PeerTableTest, APeerThatDoesNotGreetIsClosedAtItsDeadline) {
  accept();
  EXPECT_TRUE(peers_->has_unsettled());
  peers_->expire(in(std::chrono::seconds(1)));
  EXPECT_THAT(closed_, IsEmpty());
  peers_->expire(in(std::chrono::seconds(4)));
  EXPECT_THAT(closed_, ElementsAre(&connections_[0]));
  EXPECT_FALSE(peers_->needs_visit());
}

TEST_F(PeerTableTest, AnActivePeerIsSettledUntilItHasABacklog) {
  ShardPeer& peer = activate(2);
  EXPECT_EQ(peers_->active(2), &peer);
  EXPECT_EQ(peers_->active(0), nullptr);
  EXPECT_FALSE(peers_->has_unsettled());
  peer.backlog.push_back(5);
  peers_->update_unsettled(peer);
  peers_->update_unsettled(peer);
  EXPECT_TRUE(peers_->has_unsettled());
  peer.backlog.clear();
  peers_->update_unsettled(peer);
  EXPECT_FALSE(peers_->has_unsettled());
}

TEST_F(PeerTableTest, AWorkerHasOneActivePeer) {
  ShardPeer& former = activate(1);
  former.backlog.push_back(0);
  peers_->update_unsettled(former);
  const ShardPeer& now = activate(1);
  EXPECT_EQ(peers_->active(1), &now);
  EXPECT_EQ(former.phase, Phase::closing);
  EXPECT_THAT(inactive_, ElementsAre(1));
  peers_->expire(Clock::now());
  EXPECT_THAT(closed_, ElementsAre(&connections_[0]));
  EXPECT_FALSE(peers_->has_unsettled());
  EXPECT_THAT(inactive_, ElementsAre(1)) << "the closed peer was inactive already";
}

TEST_F(PeerTableTest, ARefusedPeerReadsTheReasonBeforeItIsClosed) {
  ShardPeer& peer = activate(3);
  peers_->refuse(peer, "wrong magic");
  proto::ToWorker message;
  ASSERT_EQ(connections_[0].sent.size(), 1u);
  ASSERT_TRUE(message.ParseFromString(connections_[0].sent[0]));
  EXPECT_EQ(message.refused(), "wrong magic");
  EXPECT_THAT(lost_, ElementsAre("3/7 it was refused: wrong magic"));
  EXPECT_EQ(peers_->active(3), nullptr);
  EXPECT_THAT(closed_, IsEmpty());
  peers_->expire(in(std::chrono::seconds(2)));
  EXPECT_THAT(closed_, ElementsAre(&connections_[0]));
}

TEST_F(PeerTableTest, ARefusalBeforeActivationIsNoLoss) {
  peers_->refuse(accept(), "not a member");
  EXPECT_THAT(lost_, IsEmpty());
  EXPECT_THAT(inactive_, IsEmpty());
}

TEST_F(PeerTableTest, AnAbsentWorkerIsLostAfterItsDeadlineUnlessItReturns) {
  peers_->on_lost(activate(0), "reset");
  peers_->on_lost(activate(1), "reset");
  EXPECT_FALSE(peers_->has_unsettled());
  EXPECT_TRUE(peers_->needs_visit());
  activate(1);
  peers_->expire(in(std::chrono::seconds(29)));
  EXPECT_THAT(lost_, IsEmpty());
  peers_->expire(in(std::chrono::seconds(31)));
  ASSERT_EQ(lost_.size(), 1u);
  EXPECT_THAT(lost_[0], HasSubstr("0/7 its data connection was lost (reset)"));
  EXPECT_FALSE(peers_->needs_visit());
}

TEST_F(PeerTableTest, ARemovedMemberLosesAllItsConnectionsAndItsAdmission) {
  peers_->admit(4, kIncarnation, "key");
  activate(4);
  ShardPeer& beside = accept();
  join(beside, 4);
  ShardPeer& other = activate(5);
  peers_->remove_member(4, kIncarnation + 1);
  EXPECT_NE(peers_->admission(4), nullptr) << "another incarnation was removed";
  EXPECT_THAT(closed_, IsEmpty());
  peers_->remove_member(4, kIncarnation);
  EXPECT_EQ(peers_->admission(4), nullptr);
  EXPECT_EQ(closed_.size(), 2u);
  EXPECT_EQ(peers_->active(4), nullptr);
  EXPECT_EQ(peers_->active(5), &other);
  EXPECT_FALSE(peers_->has_unsettled());
}

TEST_F(PeerTableTest, TheLowestWorkerHearsOfTheEndOfALowerOne) {
  for (const WorkerIndex worker : {0, 1, 2}) {
    peers_->admit(worker, kIncarnation, "key");
    activate(worker);
  }
  peers_->remove_member(2, kIncarnation);
  for (const FakeConnection& connection : connections_) EXPECT_THAT(connection.sent, IsEmpty());
  peers_->remove_member(0, kIncarnation);
  proto::ToWorker message;
  ASSERT_EQ(connections_[1].sent.size(), 1u);
  ASSERT_TRUE(message.ParseFromString(connections_[1].sent[0]));
  EXPECT_TRUE(message.lower_left());
}

TEST_F(PeerTableTest, CloseJoinedLeavesPeersWithoutJoinPath) {
  accept();
  activate(0);
  peers_->close_joined();
  EXPECT_THAT(closed_, ElementsAre(&connections_[1]));
  EXPECT_TRUE(peers_->has_unsettled());
}

TEST_F(PeerTableTest, TrafficIncludesClosedConnections) {
  ShardPeer& first = activate(0);
  first.bytes_in = 10;
  peers_->close(first);
  activate(0).bytes_out = 3;
  const std::vector<PathTraffic> traffic = peers_->traffic();
  ASSERT_EQ(traffic.size(), 1u);
  EXPECT_EQ(traffic[0].path, "fake");
  EXPECT_EQ(traffic[0].bytes_in, 10u);
  EXPECT_EQ(traffic[0].bytes_out, 3u);
}

}  // namespace
}  // namespace gradrail::ps
