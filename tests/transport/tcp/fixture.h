#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/memory.h"
#include "transport/tcp/context.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/memory_region.h"

namespace gradrail::transport::tcp {

using namespace std::chrono_literals;

inline TimePoint in(Duration time) { return Clock::now() + time; }
/// Generous: a loaded machine is slow, a lost wake-up waits for ever.
inline constexpr Duration kTimeout = 20s;

/// A context that stores its completions; messages are copied.
class Node {
 public:
  explicit Node(const Tuning& tuning = {}, const OpenOptions& options = {}) {
    auto opened = open_tuned(options, tuning);
    EXPECT_TRUE(opened.ok()) << opened.status();
    context = *std::move(opened);
  }

  std::string listen(const std::string& address = "127.0.0.1:0") {
    auto bound = context->listen(address);
    EXPECT_TRUE(bound.ok()) << bound.status();
    return bound.ok() ? *bound : "";
  }

  Connection* connect(const std::string& address) {
    auto made = context->connect(address, in(kTimeout));
    EXPECT_TRUE(made.ok()) << made.status();
    return made.ok() ? *made : nullptr;
  }

  std::unique_ptr<MemoryRegion> add(std::vector<std::byte>& memory, Access access = Access::remote_read_write) {
    auto region = context->register_memory({memory.data(), memory.size()}, access);
    EXPECT_TRUE(region.ok()) << region.status();
    return *std::move(region);
  }

  void poll(size_t room = 16) {
    std::vector<Completion> out(room);
    const size_t count = context->poll(absl::MakeSpan(out));
    for (size_t i = 0; i < count; ++i) {
      seen.push_back(out[i]);
      texts.emplace_back(reinterpret_cast<const char*>(out[i].message.data()), out[i].message.size());
    }
  }

  size_t count(Completion::Kind kind) const {
    size_t n = 0;
    for (const Completion& each : seen) n += each.kind == kind;
    return n;
  }
  const Completion* find(Completion::Kind kind) const {
    for (const Completion& each : seen) {
      if (each.kind == kind) return &each;
    }
    return nullptr;
  }
  /// Position in what was seen; the number of all when it was not.
  size_t position(Completion::Kind kind) const {
    size_t at = 0;
    while (at < seen.size() && seen[at].kind != kind) ++at;
    return at;
  }
  std::string lost_cause() const {
    const Completion* lost = find(Completion::Kind::peer_lost);
    return lost == nullptr ? "" : std::string(lost->cause.message());
  }

  std::unique_ptr<Context> context;
  std::vector<Completion> seen;
  std::vector<std::string> texts;
};

/// Polls all nodes until `done`; false at the deadline.
template <typename Done>
bool pump(std::initializer_list<Node*> nodes, Done done, Duration timeout = kTimeout) {
  const TimePoint deadline = in(timeout);
  while (!done()) {
    if (Clock::now() > deadline) return false;
    for (Node* node : nodes) node->poll();
  }
  return true;
}

inline std::vector<std::byte> pattern(size_t bytes, uint32_t seed) {
  std::vector<std::byte> memory(bytes);
  for (size_t i = 0; i < bytes; ++i) memory[i] = static_cast<std::byte>((i * 2654435761U + seed) >> 13);
  return memory;
}

inline absl::Span<const std::byte> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

/// Two nodes in one thread, connected both ways.
struct Pair {
  explicit Pair(const Tuning& tuning = {}) : server(tuning), client(tuning) {
    server_address = server.listen();
    to_server = client.connect(server_address);
    EXPECT_TRUE(pump({&server, &client}, [&] { return server.find(Completion::Kind::connected) != nullptr; }));
    to_client = server.find(Completion::Kind::connected)->connection;
  }
  template <typename Done>
  bool pump_both(Done done, Duration timeout = kTimeout) {
    return pump({&server, &client}, done, timeout);
  }

  Node server;
  Node client;
  std::string server_address;
  Connection* to_server = nullptr;
  Connection* to_client = nullptr;
};

/// A peer made of a plain socket, which can say anything.
class RawPeer {
 public:
  explicit RawPeer(const std::string& address) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    EXPECT_EQ(::connect(fd_.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0) << strerror(errno);
  }
  explicit RawPeer(FileDescriptor fd) : fd_(std::move(fd)) {}

  void say(const void* data, size_t bytes) { send(fd_.get(), data, bytes, MSG_NOSIGNAL); }
  void say(const HeaderBytes& header) { say(header.data(), header.size()); }
  void say(const FrameHeader& header) { say(encode(header)); }
  void start_handshake(uint64_t version = kProtocolVersion) {
    say(FrameHeader{.type = FrameType::hello, .token = kHelloMagic, .value = version});
  }

  /// All that has come so far; `closed` becomes true at its end.
  void hear() {
    char buffer[4096];
    while (!closed) {
      const ssize_t got = recv(fd_.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
      if (got < 0 && errno == EAGAIN) return;
      if (got <= 0) {
        closed = true;
        return;
      }
      heard.append(buffer, static_cast<size_t>(got));
    }
  }
  void hang_up() { fd_.reset(); }
  int fd() const { return fd_.get(); }

  std::string heard;
  bool closed = false;

 private:
  FileDescriptor fd_;
};

}  // namespace gradrail::transport::tcp
