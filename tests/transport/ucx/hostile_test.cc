// Actions of a peer that violates the rules: it guesses keys, accesses memory beyond its region, garbles its handshake.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/random_bits.h"
#include "base/status.h"
#include "transport/tcp/context.h"
#include "transport/ucx/context.h"
#include "transport/ucx/device/network_device.h"
#include "transport/ucx/device/worker.h"
#include "transport/ucx/endpoint.h"
#include "transport/ucx/handshake.h"
#include "transport/ucx/memory_region.h"
#include "transport/ucx/wire.h"

namespace gradrail::transport::ucx {
namespace {

constexpr Duration kTimeout = std::chrono::seconds(20);

absl::Span<const std::byte> bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

std::unique_ptr<Context> must_open() {
  auto opened = ucx::open({});
  EXPECT_TRUE(opened.ok()) << opened.status();
  return *std::move(opened);
}

/// Polls until `done` says so; false at the deadline.
template <typename Done>
bool poll_until(Context& context, const Done& done) {
  const TimePoint deadline = Clock::now() + kTimeout;
  std::array<Completion, 16> out;
  while (Clock::now() < deadline) {
    const size_t count = context.poll(absl::MakeSpan(out));
    for (size_t i = 0; i < count; ++i) {
      if (done(out[i])) return true;
    }
    if (count == 0) std::this_thread::yield();
  }
  return false;
}

/// The owner of the memory under attack, on a thread of its own: it listens, and counts what reaches it.
class Owner {
 public:
  Owner() : thread_([this] { run(); }) {
    while (!ready_) std::this_thread::yield();
  }
  ~Owner() {
    stop_ = true;
    thread_.join();
  }
  const std::string& address() const { return address_; }
  const std::string& key() const { return key_; }
  int notices() const { return notices_; }
  bool untouched_beyond_slot() const {
    return std::all_of(memory_.begin() + kSlotBytes, memory_.end(),
                       [](std::byte each) { return each == std::byte{0}; });
  }
  static constexpr size_t kSlotBytes = 64;

 private:
  void run() {
    const std::unique_ptr<Context> context = must_open();
    const auto address = context->listen("127.0.0.1:0");
    const auto region = context->register_memory({memory_.data(), kSlotBytes}, Access::remote_write);
    ASSERT_TRUE(address.ok() && region.ok());
    address_ = *address;
    key_ = (*region)->key();
    ready_ = true;
    std::array<Completion, 16> out;
    while (!stop_) {
      const size_t count = context->poll(absl::MakeSpan(out));
      for (size_t i = 0; i < count; ++i) {
        notices_ += out[i].kind == Completion::Kind::put_arrived ? 1 : 0;
        if (out[i].kind == Completion::Kind::peer_lost) context->close(out[i].connection);
      }
      if (count == 0) std::this_thread::yield();
    }
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(1 << 16);
  std::string address_;
  std::string key_;
  std::atomic<bool> ready_ = false, stop_ = false;
  std::atomic<int> notices_ = 0;
  std::thread thread_;
};

/// A connection of an attacker's, and one put over it with a key of its own making.
absl::Status attack(Context& context, const std::string& address, const std::string& key, uint64_t offset,
                    const MemoryRegion& source) {
  GRADRAIL_ASSIGN_OR_RETURN(const auto connection, context.connect(address, Clock::now() + kTimeout));
  GRADRAIL_ASSIGN_OR_RETURN(const auto region, connection->import(key));
  absl::Status outcome = absl::OkStatus();
  while (true) {
    outcome = connection->put({&source, 0, source.span().bytes}, {region, offset}, {.immediate = 666});
    if (outcome.code() != absl::StatusCode::kResourceExhausted) break;
    poll_until(context, [](const Completion&) { return true; });
  }
  if (!outcome.ok()) return outcome;
  poll_until(context, [&](const Completion& completion) {
    if (completion.kind == Completion::Kind::peer_lost) outcome = completion.cause;
    return completion.kind == Completion::Kind::peer_lost;
  });
  context.close(connection);
  return outcome;
}

struct Attacker {
  std::unique_ptr<Context> context = must_open();
  std::vector<std::byte> memory = std::vector<std::byte>(Owner::kSlotBytes, std::byte{0x77});
  std::unique_ptr<MemoryRegion> source = *context->register_memory({memory.data(), memory.size()}, Access::local);
};

/// A third party's put still arrives.
void expect_serving(const Owner& owner) {
  const int before = owner.notices();
  Attacker honest;
  const auto connection = honest.context->connect(owner.address(), Clock::now() + kTimeout);
  ASSERT_TRUE(connection.ok()) << connection.status();
  const auto region = (*connection)->import(owner.key());
  ASSERT_TRUE(region.ok()) << region.status();
  const TimePoint deadline = Clock::now() + kTimeout;
  std::array<Completion, 4> out;
  while (!(*connection)->put({honest.source.get(), 0, 8}, {*region, 0}, {.immediate = 1}).ok()) {
    ASSERT_LT(Clock::now(), deadline);
    honest.context->poll(absl::MakeSpan(out));
  }
  while (owner.notices() == before) {
    ASSERT_LT(Clock::now(), deadline) << "the owner serves no more";
    honest.context->poll(absl::MakeSpan(out));
  }
  honest.context->close(*connection);
}

TEST(UcxHostile, guessed_keys_are_refused_and_cost_only_the_guesser_its_connection) {
  Owner owner;
  Attacker attacker;
  RegionKey key = *RegionKey::parse(owner.key());
  for (int guess = 0; guess < 32; ++guess) {
    key.token = random_bits();
    const absl::Status refusal = attack(*attacker.context, owner.address(), key.encode(), 0, *attacker.source);
    ASSERT_NE(refusal.message().find("with a wrong key"), absl::string_view::npos) << guess << ": " << refusal;
  }
  EXPECT_EQ(owner.notices(), 0);
  expect_serving(owner);
  EXPECT_EQ(owner.notices(), 1);
}

TEST(UcxHostile, a_key_that_lies_about_its_size_or_rights_opens_nothing) {
  Owner owner;
  Attacker attacker;
  RegionKey key = *RegionKey::parse(owner.key());
  key.bytes = UINT64_MAX;
  for (const uint64_t offset : {uint64_t{1}, uint64_t{Owner::kSlotBytes}, uint64_t{4096}, UINT64_MAX - 64}) {
    const absl::Status refusal = attack(*attacker.context, owner.address(), key.encode(), offset, *attacker.source);
    EXPECT_NE(refusal.message().find("outside region"), absl::string_view::npos) << offset << ": " << refusal;
  }
  EXPECT_TRUE(owner.untouched_beyond_slot());
  EXPECT_EQ(owner.notices(), 0);
  expect_serving(owner);
}

/// The owner's answer, as text, to these tcp messages of an unknown peer; "" when it only disconnects.
std::string answer_to(const Owner& owner, const std::vector<std::string>& messages) {
  auto opened = tcp::open({});
  EXPECT_TRUE(opened.ok()) << opened.status();
  Context& context = **opened;
  const auto connection = context.connect(owner.address(), Clock::now() + kTimeout);
  EXPECT_TRUE(connection.ok()) << connection.status();
  for (const std::string& message : messages) EXPECT_TRUE((*connection)->send(bytes_of(message)).ok());
  std::string answer;
  const bool ended = poll_until(context, [&](const Completion& completion) {
    if (completion.kind == Completion::Kind::message) {
      answer.append(reinterpret_cast<const char*>(completion.message.data()), completion.message.size());
    }
    return completion.kind == Completion::Kind::peer_lost;
  });
  EXPECT_TRUE(ended) << "the owner keeps an unknown peer";
  context.close(*connection);
  return answer;
}

TEST(UcxHostile, garbled_handshakes_are_answered_with_a_reason) {
  Owner owner;
  const std::string good = frames_of(FrameKind::handshake, std::string(200, 'x'), 4096).front();
  std::string future = good;
  future[4] = 77;
  EXPECT_NE(answer_to(owner, {future}).find("protocol version 77, this side has version 1"), std::string::npos);
  EXPECT_NE(answer_to(owner, {good}).find("damaged handshake"), std::string::npos);
  EXPECT_NE(answer_to(owner, {std::string(100, '?')}).find("not a handshake"), std::string::npos);
  EXPECT_NE(answer_to(owner, {std::string()}).find("not a handshake"), std::string::npos);
  std::string more = good;
  more[7] = 1;  // never ends
  EXPECT_NE(answer_to(owner, std::vector<std::string>(400, more)).find("too many"), std::string::npos);
  expect_serving(owner);
}

/// A peer that writes its messages of UCX itself.
class RawPeer {
 public:
  static constexpr uint64_t kContext = 1;

  /// Connects and says hello, while `victim` polls. The connection of the victim is then in connection().
  RawPeer(Context& victim, const std::string& address) : victim_(victim) {
    tcp_connection_ = *tcp_->connect(address, Clock::now() + kTimeout);
    ucp_am_handler_param_t handler{};
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB;
    handler.id = kActiveMessage;
    handler.cb = ignore_message;
    EXPECT_EQ(ucp_worker_set_am_recv_handler(worker_.get(), &handler), UCS_OK);
    const Handshake handshake = {.context = kContext,
                                 .token = 2,
                                 .ucx_major = UCP_API_MAJOR,
                                 .ucx_minor = UCP_API_MINOR,
                                 .worker_address = *worker_.address()};
    for (const std::string& frame : frames_of(FrameKind::handshake, encode(handshake), kMaxMessageBytes)) {
      EXPECT_TRUE(tcp_connection_->send(bytes_of(frame)).ok());
    }
    std::string answer;
    EXPECT_TRUE(progress_until([&] { return receive(answer); }));
    peer_ = *parse_handshake(answer, UCP_API_MAJOR, UCP_API_MINOR);
    EXPECT_TRUE(endpoint_.open(worker_.get(), peer_.worker_address, ignore_failure, nullptr).ok());
    send({.kind = MessageKind::hello}, "", 0);
    EXPECT_TRUE(progress_until([&] { return connection_ != nullptr; }));
  }
  ~RawPeer() {
    tcp_->close(tcp_connection_);
    endpoint_.close();
    EXPECT_TRUE(progress_until([&] { return endpoint_.released(); }));
    endpoint_.reap();
  }

  void send(Header header, const std::string& body, unsigned flags) {
    header.connection = peer_.connection;
    header.token = peer_.token;
    sent_.push_back({encode(header), body});
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = flags;
    const ucs_status_ptr_t request =
        ucp_am_send_nbx(endpoint_.get(), kActiveMessage, sent_.back().header.data(), header.bytes(),
                        sent_.back().body.data(), sent_.back().body.size(), &param);
    ASSERT_FALSE(UCS_PTR_IS_ERR(request));
    if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);
  }

  template <typename Done>
  bool progress_until(const Done& done) {
    const TimePoint deadline = Clock::now() + kTimeout;
    std::array<Completion, 1> out;
    while (Clock::now() < deadline) {
      ucp_worker_progress(worker_.get());
      if (victim_.poll(absl::MakeSpan(out)) > 0) {
        if (out[0].kind == Completion::Kind::connected) connection_ = out[0].connection;
        seen_.push_back(out[0]);
      }
      if (done()) return true;
    }
    return false;
  }

  Connection& connection() { return *connection_; }
  size_t count(Completion::Kind kind) const {
    return static_cast<size_t>(
        std::count_if(seen_.begin(), seen_.end(), [&](const Completion& each) { return each.kind == kind; }));
  }
  absl::Status cause() const { return seen_.back().cause; }

 private:
  struct Sent {
    HeaderBytes header;
    std::string body;
  };
  static void ignore_failure(void*, ucp_ep_h, ucs_status_t) {}
  static ucs_status_t ignore_message(void*, const void*, size_t, void*, size_t, const ucp_am_recv_param_t*) {
    return UCS_OK;
  }

  bool receive(std::string& answer) {
    std::array<Completion, 1> out;
    if (tcp_->poll(absl::MakeSpan(out)) == 0) return false;
    EXPECT_EQ(out[0].kind, Completion::Kind::message) << out[0].cause;
    const auto frame = parse_frame({reinterpret_cast<const char*>(out[0].message.data()), out[0].message.size()});
    EXPECT_TRUE(frame.ok()) << frame.status();
    answer += frame->text;
    return !frame->more;
  }

  Context& victim_;
  std::unique_ptr<Context> tcp_ = *tcp::open({});
  Connection* tcp_connection_ = nullptr;
  Worker worker_ = *Worker::open({});
  Handshake peer_;
  Endpoint endpoint_;
  std::deque<Sent> sent_;  ///< UCX reads a rendezvous from here
  Connection* connection_ = nullptr;
  std::vector<Completion> seen_;
};

TEST(UcxHostile, a_put_of_no_bytes_by_rendezvous_only_notifies) {
  const std::unique_ptr<Context> victim = must_open();
  RawPeer peer(*victim, *victim->listen("127.0.0.1:0"));
  peer.send({.kind = MessageKind::put, .notify = true, .value = 5}, "", UCP_AM_SEND_FLAG_RNDV);
  EXPECT_TRUE(peer.progress_until([&] { return peer.count(Completion::Kind::put_arrived) == 1; }));
  victim->close(&peer.connection());
}

TEST(UcxHostile, a_second_answer_to_a_get_is_refused) {
  for (const unsigned second : {unsigned{UCP_AM_SEND_FLAG_RNDV}, 0U}) {
    const std::unique_ptr<Context> victim = must_open();
    std::vector<std::byte> memory(1 << 16);
    const auto target = *victim->register_memory({memory.data(), memory.size()}, Access::local);
    RawPeer peer(*victim, *victim->listen("127.0.0.1:0"));
    const RegionKey key = {.context = RawPeer::kContext, .bytes = memory.size(), .access = Access::remote_read};
    const RemoteRegion source = *peer.connection().import(key.encode());
    EXPECT_TRUE(peer.progress_until([&] {
      return peer.connection().get({target.get(), 0, memory.size()}, {source, 0}, 7).ok();
    }));
    const Header answer = {.kind = MessageKind::get_data, .value = kMaxGets};  // the number of the first get
    const std::string body(memory.size(), 'x');
    peer.send(answer, body, UCP_AM_SEND_FLAG_RNDV);
    peer.send(answer, body, second);
    EXPECT_TRUE(peer.progress_until([&] { return peer.count(Completion::Kind::peer_lost) == 1; }));
    EXPECT_LE(peer.count(Completion::Kind::get_done), 1U);
    EXPECT_NE(peer.cause().message().find("a get that was not requested"), absl::string_view::npos) << peer.cause();
    victim->close(&peer.connection());
  }
}

TEST(UcxOpen, rdma_only_opens_where_there_is_a_device_and_says_why_not_elsewhere) {
  unsetenv("UCX_TLS");
  const auto opened = ucx::open({.rdma_only = true});
  if (!rdma_ports().empty()) {
    EXPECT_TRUE(opened.ok()) << opened.status();
    return;
  }
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kUnavailable) << opened.status();
  EXPECT_NE(opened.status().message().find("no device fits UCX_TLS"), absl::string_view::npos) << opened.status();
}

}  // namespace
}  // namespace gradrail::transport::ucx
