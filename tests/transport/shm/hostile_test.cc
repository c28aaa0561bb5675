/// Peers that lie. Whatever they write, the context refuses with a reason, loses at most that peer, and continues.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gradrail/clock.h"
#include "tests/base/captured_log.h"
#include "tests/transport/shm/testing.h"

namespace {

thread_local int early_ends = 0;  ///< so many calls of recvmsg() report an end that has not come

}  // namespace

extern "C" ssize_t recvmsg(int socket, msghdr* message, int flags) {
  if (early_ends > 0) return --early_ends, 0;
  static const auto real = reinterpret_cast<decltype(&recvmsg)>(dlsym(RTLD_NEXT, "recvmsg"));
  return real(socket, message, flags);
}

namespace gradrail::transport::shm::testing {
namespace {

using ::testing::HasSubstr;

/// A peer made of bare system calls.
struct RawPeer {
  FileDescriptor socket;
  FileDescriptor file;
  FileDescriptor bell{eventfd(0, EFD_CLOEXEC)};
  Mapping rings;

  explicit RawPeer(const std::string& address) {
    absl::StatusOr<FileDescriptor> connected = connect_to(address, Clock::now() + kTimeout);
    EXPECT_TRUE(connected.ok()) << connected.status();
    socket = std::move(*connected);
    make_rings();
  }
  explicit RawPeer(FileDescriptor accepted) : socket(std::move(accepted)) {}

  void make_rings() {
    absl::StatusOr<FileDescriptor> created = create_sealed("hostile", sizeof(RingPair));
    EXPECT_TRUE(created.ok()) << created.status();
    file = std::move(*created);
    absl::StatusOr<Mapping> mapped = Mapping::map_sealed(file.get(), sizeof(RingPair), Mapping::Mode::read_write);
    EXPECT_TRUE(mapped.ok()) << mapped.status();
    rings = std::move(*mapped);
  }

  RingPair& pair() { return *reinterpret_cast<RingPair*>(rings.data()); }
  void say(const ControlMessage& message, const std::vector<int>& descriptors) {
    EXPECT_TRUE(send_packet(socket.get(), message, descriptors).ok());
  }
  void send_hello() { say(make_hello(), {file.get(), bell.get()}); }

  /// The next packet; `context` is polled meanwhile, and what completes there is given to `seen`.
  Packet hear(Context& context, std::vector<Completion>* seen = nullptr) {
    const TimePoint deadline = Clock::now() + kTimeout;
    while (Clock::now() < deadline) {
      Completion completion;
      if (context.poll({&completion, 1}) == 1 && seen != nullptr) seen->push_back(completion);
      absl::StatusOr<Packet> packet = receive_packet(socket.get());
      EXPECT_TRUE(packet.ok()) << packet.status();
      if (!packet.ok() || packet->kind != Packet::Kind::nothing) return packet.ok() ? std::move(*packet) : Packet{};
    }
    ADD_FAILURE() << "no answer";
    return {};
  }
};

class ShmHostile : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::string> address = context_->listen("");
    ASSERT_TRUE(address.ok()) << address.status();
    address_ = *address;
  }

  /// The listener must continue to serve honest peers.
  void expect_alive() {
    std::unique_ptr<Context> honest = open_context();
    ASSERT_TRUE(honest->connect(address_, Clock::now() + kTimeout).ok());
    EXPECT_EQ(await(*context_).kind, Completion::Kind::connected);
  }

  void expect_refusal(RawPeer& peer, absl::StatusCode code, const std::string& text) {
    const Packet packet = peer.hear(*context_);
    ASSERT_EQ(packet.kind, Packet::Kind::message);
    ASSERT_EQ(packet.message.kind, ControlKind::disconnect);
    EXPECT_EQ(reason_of(packet.message).code(), code);
    EXPECT_THAT(std::string(reason_of(packet.message).message()), HasSubstr(text));
    EXPECT_EQ(peer.hear(*context_).kind, Packet::Kind::ended);
    Completion none;
    EXPECT_EQ(context_->poll({&none, 1}), 0u) << "a refused peer must not show";
  }

  /// A peer that was let in, and the connection it got.
  Connection* let_in(RawPeer& peer) {
    peer.send_hello();
    const Completion connected = await(*context_);
    EXPECT_EQ(connected.kind, Completion::Kind::connected);
    EXPECT_EQ(peer.hear(*context_).message.kind, ControlKind::welcome);
    return connected.connection;
  }

  void expect_lost(absl::StatusCode code, const std::string& text) {
    const Completion lost = await(*context_);
    EXPECT_EQ(lost.kind, Completion::Kind::peer_lost);
    EXPECT_EQ(lost.cause.code(), code) << lost.cause;
    EXPECT_THAT(std::string(lost.cause.message()), HasSubstr(text));
    Completion none;
    for (int i = 0; i < 2000; ++i) ASSERT_EQ(context_->poll({&none, 1}), 0u) << "peer_lost comes once and last";
    EXPECT_TRUE(context_->arm()) << "a lost peer must not keep the context awake";
  }

  std::unique_ptr<Context> context_ = open_context();
  std::string address_;
};

TEST_F(ShmHostile, GarbageInsteadOfHello) {
  const uint64_t seed = static_cast<uint64_t>(Clock::now().time_since_epoch().count());
  SCOPED_TRACE(seed);
  Random random(seed);
  for (int i = 0; i < 200; ++i) {
    RawPeer peer(address_);
    std::vector<uint8_t> garbage(1 + random.below(1000));
    if (i % 4 == 0) garbage.resize(sizeof(ControlMessage));
    for (uint8_t& byte : garbage) byte = static_cast<uint8_t>(random.next());
    if (i % 8 == 0) std::memcpy(garbage.data(), &kMagic, sizeof(kMagic));
    ASSERT_EQ(::send(peer.socket.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(garbage.size()));
    expect_refusal(peer, absl::StatusCode::kInvalidArgument, "");
  }
  expect_alive();
}

TEST_F(ShmHostile, WrongVersionGetsBothVersions) {
  RawPeer peer(address_);
  ControlMessage hello = make_hello();
  hello.version = 77;
  peer.say(hello, {peer.file.get(), peer.bell.get()});
  expect_refusal(peer, absl::StatusCode::kInvalidArgument, "version 77");
  expect_alive();
}

TEST_F(ShmHostile, TooFewDescriptors) {
  for (const size_t count : {size_t{0}, size_t{1}}) {
    RawPeer peer(address_);
    peer.say(make_hello(), std::vector<int>(count, peer.file.get()));
    expect_refusal(peer, absl::StatusCode::kInvalidArgument, "descriptors");
  }
  expect_alive();
}

TEST_F(ShmHostile, UnsealedRings) {
  RawPeer peer(address_);
  const FileDescriptor unsealed(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), sizeof(RingPair)), 0);
  peer.say(make_hello(), {unsealed.get(), peer.bell.get()});
  expect_refusal(peer, absl::StatusCode::kInvalidArgument, "not sealed");
  expect_alive();
}

TEST_F(ShmHostile, RingsTooSmallOrNotMemory) {
  absl::StatusOr<FileDescriptor> small = create_sealed("small", sizeof(RingPair) - 1);
  ASSERT_TRUE(small.ok());
  RawPeer one(address_);
  one.say(make_hello(), {small->get(), one.bell.get()});
  expect_refusal(one, absl::StatusCode::kInvalidArgument, "bytes of");
  RawPeer two(address_);
  two.say(make_hello(), {two.bell.get(), two.bell.get()});
  expect_refusal(two, absl::StatusCode::kInvalidArgument, "not a memfd");
  expect_alive();
}

TEST_F(ShmHostile, BellThatIsAPipe) {
  RawPeer peer(address_);
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const FileDescriptor read_end(ends[0]);
  const FileDescriptor write_end(ends[1]);
  peer.say(make_hello(), {peer.file.get(), write_end.get()});
  expect_refusal(peer, absl::StatusCode::kInvalidArgument, "eventfd");
  expect_alive();
}

TEST_F(ShmHostile, SilentPeerDoesNotDisturbOthers) {
  RawPeer silent(address_);
  expect_alive();
}

TEST_F(ShmHostile, CorruptedEntriesLoseThePeerAndTellIt) {
  const std::vector<std::function<void(Ring&)>> corruptions = {
      [](Ring& ring) { ring.entries[0].sequence = 2; },
      [](Ring& ring) { ring.entries[0].sequence = ~uint64_t{0}; },
      [](Ring& ring) { ring.entries[0].header = 9, ring.entries[0].sequence = 1; },
      [](Ring& ring) { ring.entries[0].header = 2 | (uint64_t{4097} << 32), ring.entries[0].sequence = 1; },
      [](Ring& ring) { ring.entries[0].header = 2 | (uint64_t{0xffffffff} << 32), ring.entries[0].sequence = 1; },
  };
  for (const auto& corrupt : corruptions) {
    RawPeer peer(address_);
    Connection* connection = let_in(peer);
    corrupt(peer.pair().from_connector);
    expect_lost(absl::StatusCode::kDataLoss, "ring");
    EXPECT_EQ(reason_of(peer.hear(*context_).message).code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(connection->send({}).code(), absl::StatusCode::kUnavailable);
  }
  expect_alive();
}

TEST_F(ShmHostile, ImpossibleHeadLosesThePeer) {
  RawPeer peer(address_);
  Connection* connection = let_in(peer);
  for (size_t i = 0; i < kRingEntries; ++i) ASSERT_TRUE(connection->send({}).ok());
  EXPECT_EQ(connection->send({}).code(), absl::StatusCode::kResourceExhausted);
  peer.pair().from_acceptor.head = kRingEntries + 1;
  EXPECT_EQ(connection->send({}).code(), absl::StatusCode::kUnavailable);
  expect_lost(absl::StatusCode::kDataLoss, "ring");
  expect_alive();
}

TEST_F(ShmHostile, GuessedKeyEndsTheConnectionOnBothSides) {
  const SharedMemory memory = shared_memory(4096);
  auto region = context_->register_memory(memory.span(), Access::remote_read_write);
  ASSERT_TRUE(region.ok()) << region.status();
  const RegionKey real = *decode_key((*region)->key());
  std::vector<RegionKey> guesses(5, real);
  guesses[0].token ^= 1;
  guesses[1].id += 1;
  guesses[2].bytes *= 2;
  guesses[3].access = static_cast<uint8_t>(Access::remote_read);
  guesses[4].reserved = 1;
  for (const RegionKey& guess : guesses) {
    RawPeer peer(address_);
    let_in(peer);
    ControlMessage fetch;
    fetch.kind = ControlKind::fetch;
    fetch.key = guess;
    peer.say(fetch, {});
    std::vector<Completion> seen;
    const Packet answer = peer.hear(*context_, &seen);
    EXPECT_EQ(answer.message.kind, ControlKind::disconnect);
    EXPECT_EQ(reason_of(answer.message).code(), absl::StatusCode::kPermissionDenied);
    EXPECT_TRUE(answer.descriptors.empty());
    if (seen.empty()) seen.push_back(await(*context_));
    EXPECT_EQ(seen[0].kind, Completion::Kind::peer_lost);
    EXPECT_EQ(seen[0].cause.code(), absl::StatusCode::kPermissionDenied);
  }
  expect_alive();
}

TEST_F(ShmHostile, WithdrawnAndLocalRegionsAreNotGiven) {
  const SharedMemory memory = shared_memory(4096);
  auto withdrawn = context_->register_memory(memory.span(), Access::remote_read);
  auto local = context_->register_memory(memory.span(), Access::local);
  ASSERT_TRUE(withdrawn.ok() && local.ok());
  const RegionKey keys[] = {*decode_key((*withdrawn)->key()), *decode_key((*local)->key())};
  withdrawn->reset();
  for (const RegionKey& key : keys) {
    RawPeer peer(address_);
    let_in(peer);
    ControlMessage fetch;
    fetch.kind = ControlKind::fetch;
    fetch.key = key;
    peer.say(fetch, {});
    EXPECT_EQ(reason_of(peer.hear(*context_).message).code(), absl::StatusCode::kPermissionDenied);
  }
}

TEST_F(ShmHostile, ReadOnlyRegionCannotBeMappedForWriting) {
  const SharedMemory memory = shared_memory(8192);
  for (const Access access : {Access::remote_read, Access::remote_read_write}) {
    auto region = context_->register_memory(memory.span(), access);
    ASSERT_TRUE(region.ok()) << region.status();
    RawPeer peer(address_);
    let_in(peer);
    ControlMessage fetch;
    fetch.kind = ControlKind::fetch;
    fetch.key = *decode_key((*region)->key());
    peer.say(fetch, {});
    const Packet answer = peer.hear(*context_);
    ASSERT_EQ(answer.message.kind, ControlKind::region);
    ASSERT_EQ(answer.descriptors.size(), 1u);
    const int fd = answer.descriptors[0].get();
    void* readable = mmap(nullptr, 8192, PROT_READ, MAP_SHARED, fd, 0);
    ASSERT_NE(readable, MAP_FAILED);
    munmap(readable, 8192);
    void* writable = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    EXPECT_EQ(writable == MAP_FAILED, access == Access::remote_read);
    if (writable != MAP_FAILED) munmap(writable, 8192);
  }
}

TEST_F(ShmHostile, PacketsOutOfTurnLoseThePeer) {
  for (const ControlKind kind : {ControlKind::hello, ControlKind::welcome, ControlKind::region, ControlKind(200)}) {
    RawPeer peer(address_);
    let_in(peer);
    ControlMessage message;
    message.kind = kind;
    peer.say(message, {peer.bell.get()});
    expect_lost(absl::StatusCode::kInvalidArgument, "peer");
  }
  expect_alive();
}

/// The other way round: our context connects, the hostile side answers.
class ShmHostileOwner : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::string> address = random_address();
    ASSERT_TRUE(address.ok());
    absl::StatusOr<FileDescriptor> listener = listen_on(*address);
    ASSERT_TRUE(listener.ok()) << listener.status();
    absl::StatusOr<Connection*> connection = context_->connect(*address, Clock::now() + kTimeout);
    ASSERT_TRUE(connection.ok()) << connection.status();
    connection_ = *connection;
    peer_ = std::make_unique<RawPeer>(FileDescriptor(accept(listener->get(), nullptr, nullptr)));
    EXPECT_EQ(peer_->hear(*context_).message.kind, ControlKind::hello);
  }

  RegionKey key_of(size_t bytes) {
    RegionKey key;
    key.access = static_cast<uint8_t>(Access::remote_read_write);
    key.id = 1;
    key.bytes = bytes;
    return key;
  }

  void answer_fetch(const RegionKey& key, const std::vector<int>& descriptors) {
    ASSERT_TRUE(connection_->import(encode(key)).ok());
    EXPECT_EQ(connection_->map(RemoteRegion(0)).status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(peer_->hear(*context_).message.kind, ControlKind::fetch);
    ControlMessage answer;
    answer.kind = ControlKind::region;
    answer.key = key;
    peer_->say(answer, descriptors);
  }

  std::unique_ptr<Context> context_ = open_context();
  Connection* connection_ = nullptr;
  std::unique_ptr<RawPeer> peer_;
};

TEST_F(ShmHostileOwner, RegionThatCouldShrinkIsRefused) {
  const FileDescriptor unsealed(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 4096), 0);
  answer_fetch(key_of(4096), {unsealed.get()});
  EXPECT_THAT(std::string(await(*context_).cause.message()), HasSubstr("not sealed"));
}

TEST_F(ShmHostileOwner, RegionSmallerThanItsKeyIsRefused) {
  absl::StatusOr<FileDescriptor> small = create_sealed("small", 4096);
  ASSERT_TRUE(small.ok());
  answer_fetch(key_of(8192), {small->get()});
  EXPECT_THAT(std::string(await(*context_).cause.message()), HasSubstr("bytes of"));
}

TEST_F(ShmHostileOwner, RegionWithoutDescriptorIsRefused) {
  answer_fetch(key_of(4096), {});
  EXPECT_EQ(await(*context_).kind, Completion::Kind::peer_lost);
}

TEST_F(ShmHostileOwner, LocalRegionThatWasNotAskedForIsRefused) {
  RegionKey key = key_of(4096);
  key.access = static_cast<uint8_t>(Access::local);
  ASSERT_TRUE(connection_->import(encode(key)).ok());
  absl::StatusOr<FileDescriptor> file = create_sealed("local", 4096);
  ASSERT_TRUE(file.ok());
  ControlMessage answer;
  answer.kind = ControlKind::region;
  answer.key = key;
  peer_->say(answer, {file->get()});
  EXPECT_THAT(std::string(await(*context_).cause.message()), HasSubstr("not requested"));
}

TEST_F(ShmHostileOwner, BellThatIsNoBellIsRefused) {
  ControlMessage welcome;
  welcome.kind = ControlKind::welcome;
  peer_->say(welcome, {peer_->socket.get()});
  EXPECT_THAT(std::string(await(*context_).cause.message()), HasSubstr("eventfd"));
}

TEST_F(ShmHostileOwner, UnprintableReasonIsCleaned) {
  peer_->say(make_disconnect(absl::InternalError("\x1b[2Jboo\n")), {});
  EXPECT_EQ(await(*context_).cause, absl::InternalError("?[2Jboo?"));
}

TEST(ShmOtherUser, IsRefusedByTheListener) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  std::unique_ptr<Context> context = open_context();
  absl::StatusOr<std::string> address = context->listen("");
  ASSERT_TRUE(address.ok());
  const pid_t child = fork();
  if (child == 0) {
    // No gtest in here: the exit status is the answer.
    if (setuid(65534) != 0) _exit(10);
    absl::StatusOr<FileDescriptor> socket = connect_to(*address, Clock::now() + kTimeout);
    if (!socket.ok()) _exit(11);
    if (check_peer(socket->get()).status().code() != absl::StatusCode::kPermissionDenied) _exit(12);
    const TimePoint deadline = Clock::now() + kTimeout;
    while (Clock::now() < deadline) {
      absl::StatusOr<Packet> packet = receive_packet(socket->get());
      if (!packet.ok()) _exit(13);
      if (packet->kind == Packet::Kind::nothing) continue;
      if (packet->kind == Packet::Kind::ended) _exit(14);
      _exit(reason_of(packet->message).code() == absl::StatusCode::kPermissionDenied ? 0 : 15);
    }
    _exit(16);
  }
  int status = 0;
  const TimePoint deadline = Clock::now() + 2 * kTimeout;
  Completion completion;
  while (waitpid(child, &status, WNOHANG) == 0 && Clock::now() < deadline) {
    EXPECT_EQ(context->poll({&completion, 1}), 0u);
  }
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

/// A peer sends its last packet and closes just after the kernel has looked for packets: the kernel reports the end.
TEST(ShmSocket, APacketJustBeforeTheEndIsNotMissed) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const FileDescriptor ours(ends[0]);
  ASSERT_TRUE(send_packet(ends[1], make_hello(), {}).ok());
  close(ends[1]);
  early_ends = 1;
  EXPECT_EQ(receive_packet(ours.get())->kind, Packet::Kind::message);
  EXPECT_EQ(early_ends, 0);
  EXPECT_EQ(receive_packet(ours.get())->kind, Packet::Kind::ended);
}

/// Any local user wrote megabytes a second into the log: one line for each connection.
TEST_F(ShmHostile, AFloodOfConnectionsWritesFewLines) {
  const CapturedLog log;
  constexpr int kConnections = 1000;
  for (int i = 0; i < kConnections; ++i) {
    RawPeer peer(address_);
    if (i % 3 == 0) {
      ASSERT_EQ(send(peer.socket.get(), "garbage", 7, MSG_NOSIGNAL), 7);
    } else if (i % 3 == 1) {
      peer.say(make_hello(), {peer.file.get(), peer.file.get()});
    } else {
      Connection* const connection = let_in(peer);
      peer.say(make_hello(), {});  // out of turn
      expect_lost(absl::StatusCode::kInvalidArgument, "");
      context_->close(connection);
      continue;
    }
    EXPECT_EQ(peer.hear(*context_).message.kind, ControlKind::disconnect);
  }
  context_.reset();
  const std::string text = log.text();
  EXPECT_THAT(text, HasSubstr("similar messages suppressed"));
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 20) << text;
}

}  // namespace
}  // namespace gradrail::transport::shm::testing
