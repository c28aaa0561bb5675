// A peer with knowledge of the source: it completes the handshake, and then writes with keys that it did not receive.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/memory.h"
#include "transport/ofi/context.h"
#include "transport/ofi/handshake.h"
#include "transport/ofi/link.h"
#include "transport/ofi/provider.h"
#include "transport/ofi/transfer_queue.h"
#include "transport/tcp/context.h"

namespace gradrail::transport::ofi {
namespace {

constexpr Duration kTimeout = std::chrono::seconds(20);
constexpr size_t kRegionBytes = 4096;

std::string environment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

OpenOptions options() { return {.ofi_provider = environment("GRADRAIL_TEST_OFI_PROVIDER", "tcp")}; }
std::string any_address() { return environment("GRADRAIL_TEST_HOST", "127.0.0.1") + ":0"; }

template <typename T>
T check_ok(absl::StatusOr<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().ToString());
  return *std::move(result);
}
void check_ok(const absl::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

/// The memory of a task that serves others, and the reports of its transport.
struct Owner {
  Owner()
      : context(check_ok(open(options()))),
        memory(check_ok(SharedMemory::create("victim", kRegionBytes))),
        region(check_ok(context->register_memory(memory.span(), Access::remote_read_write))),
        address(check_ok(context->listen(any_address()))) {}

  void poll() {
    std::array<Completion, 8> out;
    const size_t count = context->poll(absl::MakeSpan(out));
    for (const Completion& each : absl::MakeSpan(out).first(count)) {
      notices += each.kind == Completion::Kind::put_arrived ? 1 : 0;
      if (each.kind == Completion::Kind::connected) peers.push_back(each.connection);
      if (each.kind == Completion::Kind::peer_lost) lost.push_back(each.connection);
    }
  }
  void reap() {
    for (Connection* each : std::exchange(lost, {})) {
      std::erase(peers, each);
      context->close(each);
    }
  }

  std::unique_ptr<Context> context;
  SharedMemory memory;
  std::unique_ptr<MemoryRegion> region;
  std::string address;
  int notices = 0;
  std::vector<Connection*> peers, lost;
};

/// One end made by hand from the parts of the transport, which does as the test says.
class Client {
 public:
  Client(Owner& owner, const Provider& provider, fid_fabric* fabric, Domain& domain) : owner_(owner) {
    side_channel_ = check_ok(tcp::open({}));
    connection_ = check_ok(side_channel_->connect(owner.address, Clock::now() + kTimeout));
    link_ = check_ok(Link::open(fabric, domain, nullptr, /*accepts=*/false));
    say(encode(EndpointHello{.provider = provider.name,
                             .immediate_bits = static_cast<uint8_t>(provider.immediate_bits),
                             .message_bytes = kMaxMessageBytes,
                             .receives = kReceives,
                             .token = link_->messages().token(),
                             .mailbox_key = link_->mailbox_memory().key,
                             .mailbox_base = link_->mailbox_memory().base,
                             .address = link_->endpoint().address()}));
    const auto hello = std::get<EndpointHello>(hear());
    check_ok(link_->set_peer(hello.address, hello.token));
    link_->messages().set_peer(hello.receives, hello.token);
    drive([&] {
      check_ok(link_->progress_connecting());
      return link_->connected();
    });
  }

  Grant ask(const std::string& key) {
    say(encode(Request{1, check_ok(RegionKey::parse(key))}));
    return std::get<Grant>(hear());
  }

  /// Writes `value` all over the region; the error that comes of it, if any does.
  absl::Status write(const Grant& grant, std::byte value) {
    std::fill_n(link_->messages().slab().data, 64, value);
    TransferQueue queue(Operation::Kind::put, 2, 1, 1 << 20, link_->domain().provider().confirms_writes);
    const std::byte* slab = link_->messages().slab().data;
    queue.push({.local = const_cast<std::byte*>(slab),
                .descriptor = link_->message_descriptor(),
                .remote = grant.base,
                .key = grant.key,
                .bytes = 64,
                .immediate = 666});
    absl::Status result = absl::DeadlineExceededError("neither done nor refused");
    drive([&] {
      if (result = queue.pump(link_->endpoint()); !result.ok()) return true;
      fi_cq_data_entry entry{};
      const ssize_t got = fi_cq_read(link_->endpoint().queue(), &entry, 1);
      if (got == 1)
        return entry.op_context != nullptr && queue.finished(*static_cast<Operation*>(entry.op_context)) &&
               (result = absl::OkStatus()).ok();
      if (got == -FI_EAVAIL) {
        const Endpoint::Failure failure = link_->endpoint().read_failure();
        result = absl::PermissionDeniedError(failure.detail + " error " + std::to_string(failure.error));
        return true;
      }
      if (!owner_.lost.empty()) result = absl::UnavailableError("the owner has ended the connection");
      return !owner_.lost.empty();
    });
    return result;
  }

 private:
  void say(const std::string& words) {
    check_ok(connection_->send({reinterpret_cast<const std::byte*>(words.data()), words.size()}));
  }
  ControlMessage hear() {
    std::optional<ControlMessage> heard;
    drive([&] {
      std::array<Completion, 1> one;
      if (side_channel_->poll(absl::MakeSpan(one)) == 0) return false;
      if (one[0].kind == Completion::Kind::message) heard = check_ok(decode(one[0].message));
      return true;
    });
    if (!heard) throw std::runtime_error("nothing heard");
    return *heard;
  }
  void drive(const std::function<bool()>& until) {
    const TimePoint deadline = Clock::now() + kTimeout;
    while (!until()) {
      if (Clock::now() > deadline) throw std::runtime_error("never became true");
      owner_.poll();
    }
  }

  Owner& owner_;
  std::unique_ptr<Context> side_channel_;
  Connection* connection_ = nullptr;
  std::unique_ptr<Link> link_;
};

TEST(OfiHostile, guessed_keys_are_refused_and_kill_only_the_guessers_connection) {
  const auto chosen = choose_provider(options());
  if (!chosen.ok()) GTEST_SKIP() << chosen.status();
  const Provider& provider = *chosen;
  const int guesses = provider.chooses_keys ? 256 : 32;  // of 64 random bits a few say as much as many
  fid_fabric* opened = nullptr;
  ASSERT_EQ(fi_fabric(provider.info->fabric_attr, &opened, nullptr), 0);
  const Handle<fid_fabric> fabric(opened);
  const auto domain = check_ok(Domain::open(provider, fabric.get()));
  Owner owner;
  Client neighbour(owner, provider, fabric.get(), *domain);
  const Grant right = neighbour.ask(owner.region->key());
  ASSERT_TRUE(neighbour.write(right, std::byte{1}).ok());
  while (owner.notices == 0) owner.poll();

  // All values of the bits that soft-RoCE draws, the neighbour's very key among them.
  for (int guess = 0; guess < guesses; ++guess) {
    Grant wrong = right;
    wrong.key = provider.chooses_keys ? (right.key & ~uint64_t{0xff}) | static_cast<uint64_t>(guess & 0xff)
                                      : right.key + 1 + static_cast<uint64_t>(guess);
    {
      Client guesser(owner, provider, fabric.get(), *domain);
      const absl::Status refused = guesser.write(wrong, std::byte{66});
      EXPECT_FALSE(refused.ok()) << "guess " << guess;
    }
    const TimePoint deadline = Clock::now() + kTimeout;
    while (owner.lost.empty() && Clock::now() < deadline) owner.poll();
    ASSERT_EQ(owner.lost.size(), 1u) << "guess " << guess;
    owner.reap();
    ASSERT_EQ(owner.peers.size(), 1u) << "the neighbour's connection ended too";
    ASSERT_EQ(owner.memory.data()[0], std::byte{1}) << "guess " << guess << " was written";
  }
  EXPECT_EQ(owner.notices, 1) << "an attack was announced";
  EXPECT_TRUE(neighbour.write(right, std::byte{2}).ok());
  const TimePoint deadline = Clock::now() + kTimeout;
  while (owner.notices == 1 && Clock::now() < deadline) owner.poll();
  EXPECT_EQ(owner.notices, 2);
  EXPECT_EQ(owner.memory.data()[0], std::byte{2});
}

}  // namespace
}  // namespace gradrail::transport::ofi
