// Accepting, strangers, farewells: whatever has a deadline.
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "fmt/format.h"
#include "transport/tcp/connection.h"
#include "transport/tcp/context.h"

namespace gradrail::transport::tcp {
namespace {

/// A flood of connections must not keep the poll from the peers.
constexpr int kAcceptsPerPoll = 16;
/// Without descriptors the listener stays readable: look again when someone may have closed one.
constexpr Duration kAcceptPause = std::chrono::milliseconds(100);

}  // namespace

void TcpContext::accept_some() {
  for (int i = 0; i < kAcceptsPerPoll; ++i) {
    Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.open()) {
      adopt(std::move(fd));
      continue;
    }
    if (errno == EAGAIN) return;
    const bool exhausted = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    if (exhausted) return pause_accepting(errno);
    // Anything else is about the one connection that is gone already (accept(2)): take the next.
  }
}

void TcpContext::pause_accepting(int error) {
  stranger_log_.write(
      fmt::format("{}: cannot accept a connection: {} (raise `ulimit -n`)", listen_text_, strerror(error)));
  unwatch(listener_.get());
  accepting_paused_ = true;
  schedule(Clock::now() + kAcceptPause);
}

void TcpContext::adopt(Fd fd) {
  if (connections_.size() >= tuning_.max_connections) {
    stranger_log_.write(fmt::format("{}: turned away {}: {} connections are open", listen_text_,
                                    peer_address(fd.get()).text(), connections_.size()));
    return part(std::move(fd), refusal_frame("too many connections"));
  }
  tune(fd.get(), tuning_.socket);
  strangers_.push_back(std::make_unique<TcpConnection>(*this, std::move(fd), TcpConnection::Side::accepted));
  TcpConnection* const stranger = strangers_.back().get();
  stranger->hello_deadline = Clock::now() + tuning_.hello_timeout;
  schedule(stranger->hello_deadline);
  // A real peer's hello is usually there already. Only who stays silent counts, so that a crowd of silent strangers
  // pushes out its own.
  stranger->read();
  if (strangers_.size() > tuning_.max_strangers) {
    strangers_.front()->lose(absl::ResourceExhaustedError("silent while too many others are"));
  }
}

std::unique_ptr<TcpConnection> TcpContext::take_stranger(TcpConnection* stranger) {
  const auto place =
      std::find_if(strangers_.begin(), strangers_.end(), [&](const auto& each) { return each.get() == stranger; });
  GRADRAIL_CHECK(place != strangers_.end());
  std::unique_ptr<TcpConnection> taken = std::move(*place);
  strangers_.erase(place);
  return taken;
}

void TcpContext::greeted(TcpConnection* stranger) {
  connections_.push_back(take_stranger(stranger));
  watch_peers();
  Completion connected;
  connected.kind = Completion::Kind::connected;
  connected.connection = stranger;
  report(std::move(connected));
}

void TcpContext::dismiss(TcpConnection* stranger, std::string_view why) {
  stranger_log_.write(fmt::format("closed a connection that is not from a peer: {}: {}", stranger->describe(), why));
  std::erase(to_flush_, stranger);
  std::erase(to_read_, stranger);
  graveyard_.push_back(take_stranger(stranger));
}

void TcpContext::progress_farewell(Farewell* farewell) {
  const auto place =
      std::find_if(farewells_.begin(), farewells_.end(), [&](const auto& each) { return each.get() == farewell; });
  if (place == farewells_.end()) return;
  if (farewell->progress()) return watch(farewell->fd(), farewell, farewell->writing());
  unwatch(farewell->fd());
  farewell_graveyard_.push_back(std::move(*place));
  farewells_.erase(place);
}

void TcpContext::schedule(TimePoint when) {
  if (when >= next_timer_) return;
  next_timer_ = when;
  const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(when.time_since_epoch());
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(nanoseconds);
  itimerspec at{};
  at.it_value = {.tv_sec = seconds.count(), .tv_nsec = (nanoseconds - seconds).count()};
  timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &at, nullptr);
}

void TcpContext::watch_peers() {
  if (next_check_ != TimePoint::max()) return;
  next_check_ = Clock::now() + tuning_.socket.vanish_timeout / 4;
  schedule(next_check_);
}

void TcpContext::check_alive(TimePoint now) {
  if (next_check_ > now) return;
  next_check_ = TimePoint::max();
  for (const auto& connection : connections_) {
    connection->check_alive(now, tuning_.socket.vanish_timeout * 3 / 4);  // a quarter went by before the first look
  }
  if (!connections_.empty()) watch_peers();
}

void TcpContext::on_timer() {
  uint64_t expirations = 0;
  if (read(timer_.get(), &expirations, sizeof(expirations)) < 0) return;
  const TimePoint now = Clock::now();
  next_timer_ = TimePoint::max();
  while (!strangers_.empty() && strangers_.front()->hello_deadline <= now) {
    strangers_.front()->lose(absl::DeadlineExceededError("said nothing"));
  }
  while (!farewells_.empty() && farewells_.front()->deadline() <= now) {
    unwatch(farewells_.front()->fd());
    farewell_graveyard_.push_back(std::move(farewells_.front()));
    farewells_.pop_front();
  }
  if (accepting_paused_) {
    accepting_paused_ = false;
    watch(listener_.get(), &listener_source_, false);
  }
  check_alive(now);
  schedule(next_check_);
  if (!strangers_.empty()) schedule(strangers_.front()->hello_deadline);
  if (!farewells_.empty()) schedule(farewells_.front()->deadline());
}

}  // namespace gradrail::transport::tcp
