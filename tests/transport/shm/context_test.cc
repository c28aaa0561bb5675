#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/random.h"
#include "gmock/gmock.h"
#include "tests/base/forbidden_call.h"
#include "tests/transport/shm/testing.h"
#include "transport/wait_set.h"

namespace gradrail::transport::shm::testing {
namespace {

using ::testing::HasSubstr;

size_t open_descriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

size_t memfd_mappings() {
  size_t count = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) count += line.find("memfd:") != std::string::npos;
  return count;
}

std::unique_ptr<MemoryRegion> registered(Context& context, MemorySpan span, Access access) {
  auto region = context.register_memory(span, access);
  EXPECT_TRUE(region.ok()) << region.status();
  return std::move(*region);
}

TEST(ShmContext, MemoryThatCannotBeSharedIsRefusedWithTheRemedy) {
  std::unique_ptr<Context> context = open_context();
  const SharedMemory memory = shared_memory(8192);
  std::vector<std::byte> heap(64);
  MemorySpan inside = memory.span();
  inside.data += 4096;
  inside.bytes -= 4096;
  MemorySpan beyond = memory.span();
  beyond.bytes += 1;
  MemorySpan gpu = memory.span();
  gpu.kind = MemoryKind::cuda;
  for (const MemorySpan& span : {MemorySpan{.data = heap.data(), .bytes = heap.size()}, inside, beyond, gpu}) {
    const absl::Status refused = context->register_memory(span, Access::remote_read).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_THAT(std::string(context->register_memory(inside, Access::remote_read).status().message()),
              HasSubstr("SharedMemory::create"));
}

TEST(ShmContext, IsRefusedWhereTheSystemForbidsMemfd) {
  const auto open_without = [](int error) {
    const bool is_forbidden = forbid_system_call(SYS_memfd_create, error);
    const absl::Status refused = open({}).status();
    std::fprintf(stderr, "%s\n", refused.ToString().c_str());
    _exit(is_forbidden && absl::IsFailedPrecondition(refused) ? 0 : 1);
  };
  EXPECT_EXIT(open_without(EPERM), ::testing::ExitedWithCode(0),
              "memfd_create: Operation not permitted .forbidden by seccomp");
  EXPECT_EXIT(open_without(ENOSYS), ::testing::ExitedWithCode(0),
              "memfd_create: Function not implemented .forbidden by");
}

TEST(ShmContext, AddressesAreChecked) {
  std::unique_ptr<Context> one = open_context();
  std::unique_ptr<Context> two = open_context();
  const std::string name = "context-test-" + std::to_string(getpid());
  absl::StatusOr<std::string> address = one->listen(name);
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_EQ(two->listen(name).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(two->listen(std::string(200, 'x')).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(two->listen("a b").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(two->connect("missing-" + name, Clock::now() + kTimeout).status().code(), absl::StatusCode::kUnavailable);
  one.reset();  // the name goes with the context
  EXPECT_TRUE(two->listen(name).ok());
}

// The acceptor answers and blocks before the connector has read the answer: the first post must find the bell.
TEST(ShmContext, FirstPostWakesAPeerWithAnUnreadAnswer) {
  std::unique_ptr<Context> server = open_context();
  std::unique_ptr<Context> client = open_context();
  const std::string address = *server->listen("");
  Connection* connection = *client->connect(address, Clock::now() + kTimeout);
  EXPECT_EQ(await(*server).kind, Completion::Kind::connected);
  ASSERT_TRUE(server->arm());
  ASSERT_TRUE(connection->send({}).ok());
  pollfd fd{.fd = server->wait_fd(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&fd, 1, 0), 1) << "the bell was not rung";
  EXPECT_EQ(await(*server).kind, Completion::Kind::message);
}

TEST(ShmContext, WhatWasWrittenThroughMapIsOnlyNotified) {
  Pair pair;
  const SharedMemory memory = shared_memory(4096);
  auto target = registered(*pair.server, memory.span(), Access::remote_read_write);
  absl::StatusOr<RemoteRegion> remote = pair.to_server->import(target->key());
  ASSERT_TRUE(remote.ok());
  ASSERT_TRUE(poll_until(*pair.client, *pair.server, [&] { return pair.to_server->map(*remote).ok(); }));
  std::byte* mapped = *pair.to_server->map(*remote);
  ASSERT_NE(mapped, memory.data()) << "two mappings of one file";
  auto source = registered(*pair.client, {.data = mapped, .bytes = 4096}, Access::local);
  std::memset(mapped, 0x5a, 4096);
  ASSERT_TRUE(pair.to_server->put({source.get(), 0, 4096}, {*remote, 0}, {.immediate = 9, .tag = 3}).ok());
  const Completion arrived = await(*pair.server);
  EXPECT_EQ(arrived.kind, Completion::Kind::put_arrived);
  EXPECT_EQ(arrived.immediate, 9u);
  EXPECT_EQ(memory.data()[4095], std::byte{0x5a});
  EXPECT_EQ(await(*pair.client).tag, 3u);
}

TEST(ShmContext, LocalRegionIsNeitherMappedNorAskedFor) {
  Pair pair;
  const SharedMemory memory = shared_memory(4096);
  auto local = registered(*pair.server, memory.span(), Access::local);
  absl::StatusOr<RemoteRegion> remote = pair.to_server->import(local->key());
  ASSERT_TRUE(remote.ok()) << remote.status();
  EXPECT_EQ(pair.to_server->map(*remote).status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(pair.to_server->send({}).ok()) << "asking for it would have ended the connection";
  EXPECT_EQ(await(*pair.server, pair.client.get()).kind, Completion::Kind::message);
}

TEST(ShmContext, RefusedPutWritesNothing) {
  Pair pair;
  const SharedMemory memory = shared_memory(4096);
  const SharedMemory local = shared_memory(8192);
  std::memset(local.data(), 0x77, local.bytes());
  auto read_only = registered(*pair.server, memory.span(), Access::remote_read);
  auto writable = registered(*pair.server, memory.span(), Access::remote_write);
  auto source = registered(*pair.client, local.span(), Access::local);
  const RemoteRegion readable = *pair.to_server->import(read_only->key());
  const RemoteRegion target = *pair.to_server->import(writable->key());
  ASSERT_TRUE(poll_until(*pair.client, *pair.server,
                         [&] { return pair.to_server->map(readable).ok() && pair.to_server->map(target).ok(); }));
  const auto put = [&](size_t bytes, RemoteSlice to) {
    return pair.to_server->put({source.get(), 0, bytes}, to, {.immediate = 1, .tag = 1}).code();
  };
  EXPECT_EQ(put(16, {readable, 0}), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(put(4097, {target, 0}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(put(1, {target, 4096}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(put(16, {target, ~uint64_t{7}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(put(16, {RemoteRegion(99), 0}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(pair.to_server->get({source.get(), 0, 16}, {target, 0}, 1).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(pair.to_server->get({source.get(), 8190, 16}, {readable, 0}, 1).code(), absl::StatusCode::kInvalidArgument);
  for (int i = 0; i < 4096; ++i) ASSERT_EQ(memory.data()[i], std::byte{0});
  Completion none;
  EXPECT_EQ(pair.client->poll({&none, 1}), 0u);
  EXPECT_EQ(pair.server->poll({&none, 1}), 0u);
}

/// Taken one a poll: more than a context polls before it looks at its sockets, so that it learns of the end half-way.
constexpr int kSentBeforeTheEnd = 2000;

TEST(ShmContext, ClosedPeerIsLostAfterWhatItSent) {
  Pair pair;
  for (int i = 0; i < kSentBeforeTheEnd; ++i) ASSERT_TRUE(pair.to_server->send({}).ok());
  pair.client->close(pair.to_server);
  for (int i = 0; i < kSentBeforeTheEnd; ++i) ASSERT_EQ(await(*pair.server).kind, Completion::Kind::message);
  const Completion lost = await(*pair.server);
  EXPECT_EQ(lost.kind, Completion::Kind::peer_lost);
  EXPECT_THAT(std::string(lost.cause.message()), HasSubstr("peer closed"));
}

// More than the context keeps of messages in one poll, and room for all completions: the end must wait its turn.
TEST(ShmContext, LostPeerWaitsForMessagesThatDidNotFit) {
  Pair pair;
  ASSERT_TRUE(pair.server->arm()) << "so that the next poll looks at the socket first";
  const std::vector<std::byte> large(kMaxMessageBytes);
  size_t sent = 0;
  while (pair.to_server->send(large).ok()) ++sent;
  ASSERT_GT(sent, 16u);
  pair.client->close(pair.to_server);
  Completion completions[64];
  size_t messages = 0;
  for (size_t count = pair.server->poll(completions); count > 0; count = pair.server->poll(completions)) {
    for (size_t i = 0; i < count; ++i) messages += completions[i].kind == Completion::Kind::message;
    if (completions[count - 1].kind == Completion::Kind::peer_lost) break;
  }
  EXPECT_EQ(messages, sent);
}

TEST(ShmContext, KilledPeerIsLostAfterWhatItSent) {
  std::unique_ptr<Context> server = open_context();
  const std::string address = *server->listen("");
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    absl::StatusOr<std::unique_ptr<Context>> client = open({});
    absl::StatusOr<Connection*> connection = (*client)->connect(address, Clock::now() + kTimeout);
    for (int i = 0; i < kSentBeforeTheEnd; ++i) (void)(*connection)->send({}).ok();
    (void)!write(ready[1], "x", 1);
    while (true) pause();
  }
  char x = 0;
  EXPECT_EQ(read(ready[0], &x, 1), 1);
  EXPECT_EQ(await(*server).kind, Completion::Kind::connected);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  for (int i = 0; i < kSentBeforeTheEnd; ++i) ASSERT_EQ(await(*server).kind, Completion::Kind::message);
  const Completion lost = await(*server);
  EXPECT_EQ(lost.kind, Completion::Kind::peer_lost);
  EXPECT_THAT(std::string(lost.cause.message()), HasSubstr("ended"));
  close(ready[0]);
  close(ready[1]);
}

TEST(ShmContext, HundredConnectionsLeaveNothingOpen) {
  std::unique_ptr<Context> server = open_context();
  std::unique_ptr<Context> client = open_context();
  const std::string address = *server->listen("");
  const SharedMemory memory = shared_memory(4096);
  auto region = registered(*server, memory.span(), Access::remote_read);
  const size_t descriptors = open_descriptors();
  const size_t mappings = memfd_mappings();
  for (int i = 0; i < 100; ++i) {
    Connection* to_server = *client->connect(address, Clock::now() + kTimeout);
    Connection* to_client = await(*server).connection;
    const RemoteRegion remote = *to_server->import(region->key());
    ASSERT_TRUE(poll_until(*client, *server, [&] { return to_server->map(remote).ok(); }));
    if (i % 2 == 0) {
      client->close(to_server);
      EXPECT_EQ(await(*server).kind, Completion::Kind::peer_lost);
      server->close(to_client);
    } else {
      server->close(to_client);
      EXPECT_EQ(await(*client).kind, Completion::Kind::peer_lost);
      client->close(to_server);
    }
  }
  EXPECT_EQ(open_descriptors(), descriptors);
  EXPECT_EQ(memfd_mappings(), mappings);
}

/// One end of the stress below: waits for its turn, sometimes spinning a little first, then answers.
void take_turns(Context& context, Connection* peer, bool begins, uint64_t turns, Random random, std::string* failure) {
  if (begins && !peer->send({}).ok()) *failure = "first send";
  for (uint64_t turn = 0; turn < turns && failure->empty();) {
    Completion completion;
    for (uint64_t spins = random.below(40); spins > 0; --spins) {
      if (context.poll({&completion, 1}) == 1) break;
    }
    if (completion.kind != Completion::Kind::message) {
      if (context.arm()) {
        pollfd fd{.fd = context.wait_fd(), .events = POLLIN, .revents = 0};
        if (poll(&fd, 1, 10000) != 1) *failure = "slept through turn " + std::to_string(turn);
      }
      if (context.poll({&completion, 1}) == 0) continue;
    }
    if (completion.kind != Completion::Kind::message) *failure = completion.cause.ToString();
    ++turn;
    const bool last = turn == turns && begins;
    if (!last && !peer->send({}).ok()) *failure = "send";
  }
}

TEST(ShmContext, NoWakeUpIsLost) {
  constexpr uint64_t kTurns = 100000;  // of each side: 200,000 chances to sleep through one
  const uint64_t seed = static_cast<uint64_t>(Clock::now().time_since_epoch().count());
  SCOPED_TRACE(seed);
  Pair pair;
  std::string server_failure;
  std::string client_failure;
  std::thread server(
      [&] { take_turns(*pair.server, pair.to_client, false, kTurns, Random(seed, 1), &server_failure); });
  take_turns(*pair.client, pair.to_server, true, kTurns, Random(seed, 2), &client_failure);
  server.join();
  EXPECT_EQ(client_failure, "");
  EXPECT_EQ(server_failure, "");
}

}  // namespace
}  // namespace gradrail::transport::shm::testing
