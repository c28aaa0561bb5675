// Accepting, pending connections, lingering closes: all actions with a deadline.
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "fmt/format.h"
#include "transport/tcp/connection.h"
#include "transport/tcp/context.h"

namespace gradrail::transport::tcp {
namespace {

/// A flood of connections must not keep the poll from the peers.
constexpr int kAcceptsPerPoll = 16;
/// Pause of the accept. The listener stays readable without free descriptors: it is checked again when a descriptor may
/// have been closed.
constexpr Duration kAcceptPause = std::chrono::milliseconds(100);

}  // namespace

void TcpContext::accept_some(const Listener& listener) {
  for (int i = 0; i < kAcceptsPerPoll; ++i) {
    // The others wait in the queue of the kernel: adopted, they would push out each other before their agreement.
    if (seal_ && !may_agree()) return;
    FileDescriptor fd(accept4(listener.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd) {
      adopt(std::move(fd), listener);
      continue;
    }
    if (errno == EAGAIN) return;
    const bool exhausted = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    if (exhausted) return pause_accepting(listener, errno);
    // Any other error concerns a connection that has ended already (accept(2)): the loop takes the next.
  }
}

void TcpContext::pause_accepting(const Listener& listener, int error) {
  rate_limited_log_.write(fmt::format("tcp: {}: cannot accept a connection: {}{}", listener.text, strerror(error),
                                      error == EMFILE ? " (raise `ulimit -n`)" : ""));
  for (const auto& each : listeners_) unwatch(each->fd.get());
  accepting_paused_ = true;
  schedule(Clock::now() + kAcceptPause);
}

void TcpContext::adopt(FileDescriptor fd, const Listener& listener) {
  if (connections_.size() >= tuning_.max_connections) {
    rate_limited_log_.write(fmt::format("tcp: {}: refused {}: {} connections are open", listener.text,
                                        peer_address(fd.get()).text(), connections_.size()));
    return close_lingering(std::move(fd), refusal_frame("too many connections"));
  }
  tune(fd.get(), tuning_.socket);
  adapt_to_path(fd.get());
  auto seal = seal_ ? std::make_unique<seal::SealedStream>(*seal_, *static_pair_) : nullptr;
  pending_connections_.push_back(
      std::make_unique<TcpConnection>(*this, std::move(fd), TcpConnection::Side::accepted, std::move(seal)));
  TcpConnection* const pending = pending_connections_.back().get();
  pending->listener_index = listener.index;
  pending->hello_deadline = Clock::now() + tuning_.hello_timeout;
  schedule(pending->hello_deadline);
  // The hello of a real peer has usually arrived. Only silent connections count, so that many silent connections push
  // out each other.
  pending->read();
  if (pending_connections_.size() > tuning_.max_pending_connections) {
    pending_connections_.front()->lose(
        absl::ResourceExhaustedError("no handshake yet, and too many connections wait for one"));
  }
}

std::unique_ptr<TcpConnection> TcpContext::take_pending(TcpConnection* pending) {
  const auto place = std::find_if(pending_connections_.begin(), pending_connections_.end(),
                                  [&](const auto& each) { return each.get() == pending; });
  GRADRAIL_CHECK(place != pending_connections_.end());
  std::unique_ptr<TcpConnection> taken = std::move(*place);
  pending_connections_.erase(place);
  return taken;
}

void TcpContext::on_handshake_done(TcpConnection* pending) {
  // Its read() is running: ownership moves, the object stays at its address.
  connections_.push_back(take_pending(pending));
  watch_peers();
  Completion connected;
  connected.kind = Completion::Kind::connected;
  connected.connection = pending;
  connected.tag = pending->listener_index;
  report(std::move(connected));
}

void TcpContext::close_pending(TcpConnection* pending, std::string_view why) {
  rate_limited_log_.write(
      fmt::format("tcp: closed a connection that is not from a peer: {}: {}", pending->describe(), why));
  GRADRAIL_CHECK(pending->lost());  // the loops over pending_connections_ end because lose() takes one away
  std::erase(to_flush_, pending);
  std::erase(to_read_, pending);
  // Its read() may be running, and later events of the batch may point to it: it is destroyed after the poll.
  to_reap_.push_back(take_pending(pending));
}

void TcpContext::progress_lingering_close(LingeringClose* lingering_close) {
  const auto place = std::find_if(lingering_closes_.begin(), lingering_closes_.end(),
                                  [&](const auto& each) { return each.get() == lingering_close; });
  // An earlier event of this batch, or a new close beyond the limit, has ended it.
  if (place == lingering_closes_.end()) return;
  if (lingering_close->progress()) return watch(lingering_close->fd(), lingering_close, lingering_close->writing());
  unwatch(lingering_close->fd());
  lingering_closes_to_reap_.push_back(std::move(*place));
  lingering_closes_.erase(place);
}

void TcpContext::schedule(TimePoint when) {
  if (when >= next_timer_) return;
  next_timer_ = when;
  // TimePoint and the timerfd use the same clock, so its count is the absolute expiry.
  const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(when.time_since_epoch());
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(nanoseconds);
  itimerspec at{};
  at.it_value = {.tv_sec = seconds.count(), .tv_nsec = (nanoseconds - seconds).count()};
  timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &at, nullptr);
}

void TcpContext::watch_peers() {
  // One check covers all connections, also those that open until then.
  if (next_check_ != TimePoint::max()) return;
  next_check_ = Clock::now() + check_interval();
  schedule(next_check_);
}

void TcpContext::check_alive(TimePoint now) {
  if (next_check_ > now) return;
  // A busy owner polls late, but not as late as this.
  const bool was_suspended = now - std::exchange(next_check_, TimePoint::max()) > check_interval();
  for (const auto& connection : connections_) {
    // A quarter of the time passes before the first look.
    connection->check_alive(now, tuning_.socket.vanish_timeout * 3 / 4, was_suspended);
  }
  if (!connections_.empty()) watch_peers();
}

void TcpContext::on_timer() {
  uint64_t expirations = 0;
  // schedule() has set the timer again since epoll_wait() reported it: the expiry is withdrawn (timerfd_settime(2)).
  if (read(timer_.get(), &expirations, sizeof(expirations)) < 0) return;
  const TimePoint now = Clock::now();
  // The timer expires once. The end of this function schedules all times that are still pending.
  next_timer_ = TimePoint::max();
  // Every connection has the same timeout, so the oldest has the earliest deadline.
  while (!pending_connections_.empty() && pending_connections_.front()->hello_deadline <= now) {
    pending_connections_.front()->lose(absl::DeadlineExceededError("no handshake in time"));
  }
  while (!lingering_closes_.empty() && lingering_closes_.front()->deadline() <= now) {
    unwatch(lingering_closes_.front()->fd());
    lingering_closes_to_reap_.push_back(std::move(lingering_closes_.front()));
    lingering_closes_.pop_front();
  }
  if (accepting_paused_) {
    accepting_paused_ = false;
    for (const auto& each : listeners_) watch(each->fd.get(), each.get(), false);
  }
  check_alive(now);
  schedule(next_check_);
  if (!pending_connections_.empty()) schedule(pending_connections_.front()->hello_deadline);
  if (!lingering_closes_.empty()) schedule(lingering_closes_.front()->deadline());
}

}  // namespace gradrail::transport::tcp
