#include "conformance/channel.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <utility>

namespace gradrail::conformance {

Duration timeout() {
  static const Duration chosen = [] {
    const char* const patience = std::getenv("GRADRAIL_PATIENCE");
    const double factor = patience == nullptr ? 1.0 : std::max(1.0, std::atof(patience));
    return std::chrono::duration_cast<Duration>(factor * std::chrono::seconds(20));
  }();
  return chosen;
}

std::array<Channel, 2> Channel::pair() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) throw Broken("socketpair failed");
  return {Channel(fds[0]), Channel(fds[1])};
}

Channel::Channel(Channel&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

Channel::~Channel() {
  if (fd_ >= 0) close(fd_);
}

void Channel::send(std::string_view text) {
  const auto bytes = static_cast<uint32_t>(text.size());
  std::string framed(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
  framed.append(text);
  // Far below the socket's buffer in every test: a short write means that the other end has gone.
  if (::send(fd_, framed.data(), framed.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(framed.size())) {
    throw Broken("side channel: the other end has gone");
  }
}

std::string Channel::receive() {
  uint32_t bytes = 0;
  read_exactly(reinterpret_cast<char*>(&bytes), sizeof(bytes));
  std::string text(bytes, '\0');
  read_exactly(text.data(), bytes);
  return text;
}

bool Channel::has_something() const {
  pollfd waiting{.fd = fd_, .events = POLLIN, .revents = 0};
  return ::poll(&waiting, 1, 0) > 0;
}

void Channel::hang_up() { shutdown(fd_, SHUT_RDWR); }

void Channel::read_exactly(char* data, size_t bytes) {
  const TimePoint deadline = Clock::now() + timeout();
  for (size_t got = 0; got < bytes;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd waiting{.fd = fd_, .events = POLLIN, .revents = 0};
    if (left <= 0 || ::poll(&waiting, 1, static_cast<int>(left)) == 0) throw Broken("side channel: nothing came");
    const ssize_t part = recv(fd_, data + got, bytes - got, MSG_DONTWAIT);
    if (part == 0) throw Broken("side channel: the other end has gone");
    if (part > 0) got += static_cast<size_t>(part);
  }
}

}  // namespace gradrail::conformance
