// A lost path is replaced at the moment at which a ps is lost as well.
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "ps/protocol/control.pb.h"
#include "ps/protocol/data_message.h"
#include "ps/protocol/exchange_layout.h"
#include "ps/protocol/path_check.h"
#include "tests/transport/loopback/context.h"
#include "tests/transport/loopback/link.h"
#include "tests/transport/loopback/network.h"
#include "worker/client/paths/path_manager.h"

namespace gradrail::worker {
namespace {

namespace loopback = transport::loopback;
using namespace std::chrono_literals;

/// Records the loss of a ps within the poll of the worker that delivers Active.
class LossAtActive : public loopback::Network {
 public:
  explicit LossAtActive(RunFailure& failure) : failure_(failure) { loopback::use_network(this); }
  ~LossAtActive() override { loopback::use_network(nullptr); }

  uint64_t place() override { return places_++; }
  absl::Status connect(const std::shared_ptr<loopback::Link>&, TimePoint) override { return absl::OkStatus(); }
  TimePoint arrival(const loopback::End&, const loopback::End&) override { return Clock::now(); }
  bool passes(const loopback::End& from, const loopback::End&) override {
    if (from.place == 0 && sends_active.exchange(false))
      failure_.lose_server(1, absl::UnavailableError("ps 1 was lost"));
    return true;
  }

  std::atomic<bool> sends_active = false;

 private:
  RunFailure& failure_;
  std::atomic<uint64_t> places_ = 0;  ///< 0: the shard, which opens its context first
};

/// The end of the shard: the handshake of one connection.
class HandshakeOfShard {
 public:
  explicit HandshakeOfShard(LossAtActive& network) : network_(network) {
    context_ = *loopback::open({});
    address_ = *context_->listen("");
    slots_ = *context_->register_memory({slot_memory_.data(), slot_memory_.size()}, transport::Access::remote_write);
    answer_ = *context_->register_memory({pattern_.data(), pattern_.size()}, transport::Access::local);
    thread_ = std::thread([this] { serve(); });
  }
  ~HandshakeOfShard() {
    stop_ = true;
    thread_.join();
  }
  const std::string& address() const { return address_; }

 private:
  void serve() {
    transport::Completion event;
    while (!stop_) {
      if (context_->poll({&event, 1}) == 0) {
        std::this_thread::sleep_for(1ms);
      } else if (event.kind == transport::Completion::Kind::connected) {
        ps::proto::ToWorker challenge;
        challenge.set_challenge("any");
        ASSERT_TRUE(ps::send_message(*event.connection, challenge).ok());
      } else if (event.kind == transport::Completion::Kind::message) {
        on_message(*event.connection, event.message);
      } else if (event.kind == transport::Completion::Kind::put_arrived) {
        ASSERT_TRUE(event.connection
                        ->put({answer_.get(), 0, ps::kCheckBytes}, {returns_, 0}, {.immediate = ps::kCheckImmediate})
                        .ok());
      }
    }
  }

  void on_message(transport::Connection& connection, absl::Span<const std::byte> bytes) {
    ps::proto::ToShard message;
    ASSERT_TRUE(message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())));
    ps::proto::ToWorker reply;
    if (message.has_join_path()) {
      returns_ = *connection.import(message.join_path().returns_key());
      ps::fill_check({pattern_.data(), ps::kCheckBytes}, ps::check_answer_seed(message.join_path().check_seed()));
      reply.mutable_welcome()->set_slots_key(slots_->key());
    } else {
      reply.mutable_active();
      network_.sends_active = true;
    }
    ASSERT_TRUE(ps::send_message(connection, reply).ok());
  }

  LossAtActive& network_;
  std::vector<std::byte> slot_memory_ = std::vector<std::byte>(ps::kCheckBytes);
  std::vector<std::byte> pattern_ = std::vector<std::byte>(ps::kCheckBytes);
  std::unique_ptr<transport::Context> context_;
  std::unique_ptr<transport::MemoryRegion> slots_, answer_;
  transport::RemoteRegion returns_;
  std::string address_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

class CountedLosses : public PathEvents {
 public:
  void on_answer(ShardLink&, uint64_t) override {}
  void on_path_lost(ShardLink&) override { ++count; }
  int count = 0;
};

/// Found by the whole-system simulation: the worker did not repeat its pushes, and waited without end.
TEST(PathRecovery, PushesAreRepeatedAlsoIfAPsIsLostDuringTheReplacement) {
  loopback::add_to_transports();
  ClientOptions options;
  Identity identity{0};
  ModelMemory memory{Schema{{"w", {4}}}, PushFormat::fp32};
  RunFailure failure{true, [] {}};
  Telemetry telemetry{options};
  CountedLosses losses;
  LossAtActive network{failure};
  HandshakeOfShard shard{network};
  PathManager paths{options,
                    identity,
                    memory,
                    failure,
                    telemetry,
                    losses,
                    {.why_removed = [](uint32_t) { return absl::OkStatus(); }}};
  ASSERT_TRUE(memory.allocate(nullptr, options.placement.device).ok());
  auto link = std::make_unique<ShardLink>();
  link->bucket_count = 1;
  link->range = {0, 4};
  link->map = std::make_shared<const ps::ShardMap>(ps::ShardMap::cut(4, 1, 64).value());
  link->candidates = {{.name = "loopback"}};
  link->endpoints = {{"loopback", shard.address()}};
  paths.add(std::move(link));

  const absl::Status replaced = paths.replace_lost_paths();
  EXPECT_TRUE(failure.failed()) << "the loss was not recorded";
  EXPECT_EQ(replaced, failure.status()) << "the caller handles the loss of the ps next";
  ASSERT_TRUE(paths.links()[0]->is_up()) << replaced;
  EXPECT_EQ(losses.count, 1) << "a path is in use, and the pushes on the lost path were not repeated";

  failure.clear();
  EXPECT_TRUE(paths.replace_lost_paths().ok());
  EXPECT_EQ(losses.count, 1) << "the path in use is not lost";
}

}  // namespace
}  // namespace gradrail::worker
