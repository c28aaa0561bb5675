#include "transport/shm/context.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/status.h"
#include "transport/shm/native_error.h"

namespace gradrail::transport::shm {
namespace {

/// Polls between two looks at the sockets. A look costs about as much as 20 polls: at this interval the cost is
/// negligible, and a lost peer is noticed soon.
constexpr uint32_t kPollsPerLook = 1024;
constexpr auto kTimePerLook = std::chrono::milliseconds(1);
/// Polls between two readings of the clock, which costs as much as a poll.
constexpr uint32_t kPollsPerClock = 16;
/// A peer sends its hello in the same call that connects; this one is broken or hostile.
constexpr auto kHelloTimeout = std::chrono::seconds(10);
constexpr size_t kMaxPendingConnections = 256;
constexpr int kAcceptsPerLook = 64;

}  // namespace

absl::StatusOr<std::unique_ptr<Context>> open(const OpenOptions&) { return ShmContext::create(); }

absl::StatusOr<std::unique_ptr<Context>> ShmContext::create() {
  GRADRAIL_RETURN_IF_ERROR(check_usable());  // the first region or peer would find it out, after the join
  FileDescriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return from_errno(errno, "epoll_create1");
  GRADRAIL_ASSIGN_OR_RETURN(FileDescriptor bell, create_bell());
  std::unique_ptr<ShmContext> context(new ShmContext(std::move(epoll), std::move(bell)));
  GRADRAIL_RETURN_IF_ERROR(context->watch(context->bell_.get()));
  return context;
}

ShmContext::~ShmContext() {
  // The peers receive a reason; a socket that only closes would be taken for a process that ended.
  for (const auto& connection : connections_) connection->send_disconnect();
  GRADRAIL_CHECK(regions_.empty());  // a region must not outlive its Context
}

Capabilities ShmContext::capabilities() const {
  return {.one_sided = true,
          .direct_map = true,
          .ordered_puts = true,
          .wait_by_fd = true,
          .max_inline_bytes = 0,
          .max_message_bytes = kMaxMessageBytes,
          .immediate_bits = 64};
}

absl::StatusOr<std::unique_ptr<MemoryRegion>> ShmContext::register_memory(MemorySpan memory, Access access) {
  return ShmRegion::create(regions_, memory, access);
}

absl::Status ShmContext::watch(int fd) {
  epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return from_errno(errno, "epoll_ctl");
  return absl::OkStatus();
}

absl::StatusOr<std::string> ShmContext::listen(const std::string& address) {
  if (listener_) return absl::FailedPreconditionError("shm: this context listens already");
  const std::string name = address.empty() ? random_address() : address;
  GRADRAIL_ASSIGN_OR_RETURN(FileDescriptor listener, listen_on(name));
  GRADRAIL_RETURN_IF_ERROR(watch(listener.get()));
  listener_ = std::move(listener);
  address_ = name;
  return name;
}

absl::StatusOr<Connection*> ShmContext::connect(const std::string& address, TimePoint deadline) {
  GRADRAIL_ASSIGN_OR_RETURN(FileDescriptor socket, connect_to(address, deadline));
  GRADRAIL_ASSIGN_OR_RETURN(pid_t pid, check_peer(socket.get()));
  GRADRAIL_ASSIGN_OR_RETURN(FileDescriptor file, create_sealed("gradrail-rings", sizeof(RingPair)));
  GRADRAIL_ASSIGN_OR_RETURN(Mapping rings,
                            Mapping::map_sealed(file.get(), sizeof(RingPair), Mapping::Mode::read_write));
  ControlChannel channel(std::move(socket), epoll_.get());
  const int descriptors[] = {file.get(), bell_.get()};
  GRADRAIL_RETURN_IF_ERROR(channel.send(make_hello(), descriptors));
  // The welcome is not awaited: the ring exists, so posts are possible before the peer polls.
  return add({.side = ConnectionParts::Side::connector,
              .channel = std::move(channel),
              .rings = std::move(rings),
              .peer_bell = {},
              .regions = &regions_,
              .log = &rate_limited_log_,
              .peer_pid = pid,
              .address = address});
}

Connection* ShmContext::add(ConnectionParts parts) {
  connections_.push_back(std::make_unique<ShmConnection>(std::move(parts)));
  return connections_.back().get();
}

void ShmContext::close(Connection* connection) {
  const auto found = std::find_if(connections_.begin(), connections_.end(),
                                  [&](const auto& candidate) { return candidate.get() == connection; });
  GRADRAIL_CHECK(found != connections_.end());
  (*found)->send_disconnect();
  connections_.erase(found);
}

void ShmContext::accept_peers() {
  for (int i = 0; i < kAcceptsPerLook; ++i) {
    FileDescriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket) {
      admit(std::move(socket));
      continue;
    }
    const int error = errno;
    // The first is an empty queue; the others concern one attempt (accept(2)), and epoll reports the listener again.
    const bool quiet = error == EAGAIN || error == ECONNABORTED || error == EINTR;
    // The listener stays readable without free descriptors, and each look would write a line.
    if (!quiet) rate_limited_log_.write(from_errno(error, "accept a peer").ToString());
    return;
  }
}

void ShmContext::admit(FileDescriptor socket) {
  absl::StatusOr<pid_t> pid = check_peer(socket.get());
  ControlChannel channel(std::move(socket), epoll_.get());
  if (pid.ok() && pending_connections_.size() >= kMaxPendingConnections)
    pid = absl::ResourceExhaustedError("shm: too many peers without a handshake");
  if (!pid.ok()) {
    rate_limited_log_.write(fmt::format("shm {}: refused a peer: {}", address_, pid.status().ToString()));
    channel.close_with(pid.status());
    return;
  }
  const int fd = channel.fd();
  // A pending connection has its descriptor open, so the kernel gives its number to no other socket.
  GRADRAIL_CHECK(!pending_connections_.contains(fd));
  PendingConnection& pending = pending_connections_[fd];
  pending = {.channel = std::move(channel), .pid = *pid, .accepted = Clock::now()};
  // The connector sends its hello right after connect(), so it has usually arrived.
  start_handshake(pending);
}

void ShmContext::start_handshake(PendingConnection& pending) {
  const int fd = pending.channel.fd();
  absl::StatusOr<Packet> hello = pending.channel.receive();
  if (hello.ok() && hello->kind == Packet::Kind::nothing) return;
  // The end of a peer before its hello is not a refusal, and causes no warning.
  const bool spoke = !hello.ok() || hello->kind == Packet::Kind::message;
  if (const absl::Status status = hello.ok() && spoke ? welcome(pending, *hello) : hello.status(); !status.ok()) {
    rate_limited_log_.write(fmt::format("shm {}: refused process {}: {}", address_, pending.pid, status.ToString()));
    pending.channel.close_with(status);
  }
  // Closes the socket, unless welcome() has moved the channel into a connection.
  pending_connections_.erase(fd);
}

absl::Status ShmContext::welcome(PendingConnection& pending, Packet& hello) {
  GRADRAIL_RETURN_IF_ERROR(check_hello(hello.message, hello.descriptors.size()));
  GRADRAIL_RETURN_IF_ERROR(check_bell(hello.descriptors[1].get()));
  GRADRAIL_ASSIGN_OR_RETURN(
      Mapping rings, Mapping::map_sealed(hello.descriptors[0].get(), sizeof(RingPair), Mapping::Mode::read_write));
  ControlMessage answer;
  answer.kind = ControlKind::welcome;
  const int bell = bell_.get();
  GRADRAIL_RETURN_IF_ERROR(pending.channel.send(answer, {&bell, 1}));
  add({.side = ConnectionParts::Side::acceptor,
       .channel = std::move(pending.channel),
       .rings = std::move(rings),
       .peer_bell = std::move(hello.descriptors[1]),
       .regions = &regions_,
       .log = &rate_limited_log_,
       .peer_pid = pending.pid,
       .address = address_});
  return absl::OkStatus();
}

void ShmContext::drop_silent_pending() {
  const TimePoint limit = Clock::now() - kHelloTimeout;
  std::erase_if(pending_connections_, [&](const auto& item) { return item.second.accepted < limit; });
}

bool ShmContext::sockets_due() {
  ++polls_since_look_;
  if (polls_since_look_ % kPollsPerClock != 0) [[likely]] {
    return false;
  }
  if (polls_since_look_ >= kPollsPerLook || Clock::now() - last_look_ >= kTimePerLook) return true;
  return std::any_of(connections_.begin(), connections_.end(), [](const auto& c) { return c->expects_answer(); });
}

void ShmContext::look_at_sockets() {
  polls_since_look_ = 0;
  last_look_ = Clock::now();
  std::array<epoll_event, 64> events;
  const int count = epoll_wait(epoll_.get(), events.data(), events.size(), 0);
  for (int i = 0; i < count; ++i) look_at(events[static_cast<size_t>(i)].data.fd);
  if (!pending_connections_.empty()) drop_silent_pending();
}

void ShmContext::look_at(int fd) {
  if (fd == bell_.get()) {
    uint64_t rung = 0;
    [[maybe_unused]] const ssize_t bytes = read(fd, &rung, sizeof(rung));
    return;
  }
  if (fd == listener_.get()) return accept_peers();
  // An earlier event of this batch may have closed the descriptor, and its number may be in use again. Reading from a
  // socket without a packet does nothing.
  if (const auto pending = pending_connections_.find(fd); pending != pending_connections_.end())
    return start_handshake(pending->second);
  for (const auto& connection : connections_) {
    if (connection->channel_fd() == fd) return connection->service_channel();
  }
}

void ShmContext::disarm() {
  armed_ = false;
  for (const auto& connection : connections_) connection->announce_awake();
}

bool ShmContext::arm() {
  // Announce first, then look: an entry that is published in between is found here, or its producer rings the bell.
  for (const auto& connection : connections_) connection->announce_sleep();
  armed_ = true;
  const bool busy = std::any_of(connections_.begin(), connections_.end(), [](const auto& c) { return c->has_work(); });
  // Producers would otherwise pay a system call to wake a running thread.
  if (busy) disarm();
  return !busy;
}

size_t ShmContext::poll(absl::Span<Completion> out) {
  arena_.reset();
  if (armed_) {
    // The event that ended the wait may be a socket's: the look at the sockets is not postponed.
    disarm();
    look_at_sockets();
  } else if (sockets_due()) {
    look_at_sockets();
  }
  if (connections_.empty()) return 0;
  size_t count = 0;
  next_ = next_ + 1 < connections_.size() ? next_ + 1 : 0;
  for (size_t i = 0; i < connections_.size() && count < out.size(); ++i) {
    const size_t index = next_ + i < connections_.size() ? next_ + i : next_ + i - connections_.size();
    if (connections_[index]->is_quiet()) continue;
    count += connections_[index]->poll(out.subspan(count), arena_);
  }
  return count;
}

}  // namespace gradrail::transport::shm
