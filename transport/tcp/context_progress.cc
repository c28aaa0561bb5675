// The poll loop.
#include <sys/epoll.h>

#include <array>
#include <cassert>
#include <utility>

#include "base/check.h"
#include "transport/tcp/connection.h"
#include "transport/tcp/context.h"

namespace gradrail::transport::tcp {
namespace {

/// Number of connections up to which polls of each socket cost less than epoll and a poll of the socket.
constexpr size_t kFewConnections = 4;
/// Number of polls of the sockets for each call of epoll (listener, timer).
constexpr uint32_t kEpollEvery = 32;
constexpr int kEventsPerPoll = 64;

}  // namespace

size_t TcpContext::poll(absl::Span<Completion> out) {
  ready_.release_delivered([this](common::MessageBuffer buffer) { buffers_.give_back(std::move(buffer)); });
  // Otherwise the queue fills the caller's span: reading on would only move data from the sockets into memory.
  if (ready_.size() < out.size()) {
    room_ = out.size();
    progress();
  }
  return ready_.take(out);
}

void TcpContext::progress() {
  more_to_read_ = false;
  agreed_count_ = 0;
  ++turn_;
  flush_pending();
  // The first reader may fill the caller's span. Connections with buffered frames and connections with frames in the
  // kernel alternate.
  const bool in_hand_first = turn_ % 2 == 0;
  if (in_hand_first) read_pending();
  // poll_directly() reads sockets only. After arm() the event may be the listener's or the timer's, and a blocked
  // socket waits for EPOLLOUT: epoll reports these.
  const bool few = connections_.size() <= kFewConnections && pending_connections_.empty() && lingering_closes_.empty();
  if (few && !armed_ && blocked_count_ == 0 && turn_ % kEpollEvery != 0) {
    poll_directly();
  } else {
    armed_ = false;
    poll_events();
  }
  if (!in_hand_first) read_pending();
  to_reap_.clear();
  lingering_closes_to_reap_.clear();
}

void TcpContext::flush_later(TcpConnection* connection) {
  GRADRAIL_CHECK(!connection->lost());
  if (connection->flush_listed) return;
  connection->flush_listed = true;
  to_flush_.push_back(connection);
}

void TcpContext::read_later(TcpConnection* connection) {
  if (connection->read_listed) return;
  connection->read_listed = true;
  to_read_.push_back(connection);
}

void TcpContext::read_pending() {
  if (to_read_.empty()) return;
  std::vector<TcpConnection*> now;
  // A connection without room lists itself again: the swap keeps this loop finite.
  now.swap(to_read_);
  for (TcpConnection* connection : now) connection->read_listed = false;
  // The lowest bit of turn_ selects the order of the two lists; the other bits rotate the first reader.
  for (size_t i = 0; i < now.size(); ++i) now[(turn_ / 2 + i) % now.size()]->read();
}

void TcpContext::flush_pending() {
  if (to_flush_.empty()) return;
  std::vector<TcpConnection*> now;
  now.swap(to_flush_);
  for (TcpConnection* connection : now) {
    connection->flush_listed = false;
    connection->flush();
    if (connection->sendable()) flush_later(connection);
  }
}

void TcpContext::poll_directly() {
  // A lost connection stays in connections_ until close(), so indexes are stable during this loop.
  const size_t count = connections_.size();
  for (size_t i = 0; i < count; ++i) {
    assert(connections_.size() == count);
    connections_[(turn_ / 2 + i) % count]->read();
  }
}

void TcpContext::poll_events() {
  std::array<epoll_event, kEventsPerPoll> events;
  const int got = epoll_wait(epoll_.get(), events.data(), kEventsPerPoll, 0);
  const uint32_t count = got > 0 ? static_cast<uint32_t>(got) : 0;
  for (uint32_t i = 0; i < count; ++i) handle(events[(turn_ / 2 + i) % count]);
}

void TcpContext::handle(const epoll_event& event) {
  auto* const source = static_cast<EventSource*>(event.data.ptr);
  switch (source->kind()) {
    case EventSource::Kind::listener:
      return accept_some(static_cast<const Listener&>(*source));
    case EventSource::Kind::timer:
      return on_timer();
    case EventSource::Kind::lingering_close:
      return progress_lingering_close(static_cast<LingeringClose*>(source));
    case EventSource::Kind::connection:
      break;
  }
  auto* const connection = static_cast<TcpConnection*>(source);
  if ((event.events & EPOLLOUT) != 0) connection->writable();
  // EPOLLERR and EPOLLHUP arrive without a request; read() finds their cause.
  if ((event.events & ~EPOLLOUT) != 0) connection->read();
}

bool TcpContext::arm() {
  armed_ = true;
  return ready_.empty() && to_flush_.empty() && to_read_.empty() && !more_to_read_;
}

}  // namespace gradrail::transport::tcp
