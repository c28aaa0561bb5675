#include "bench/put/link.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "bench/driver/children.h"
#include "fmt/format.h"

namespace gradrail::bench {
namespace {

constexpr Duration kSilenceDeadline = std::chrono::seconds(120);  // the other may be measuring, in an emulated machine
constexpr Duration kLinkConnectDeadline = std::chrono::seconds(20);  // the other may be starting
constexpr Duration kEager = std::chrono::milliseconds(20);           // last notices still go out

absl::Status failed(std::string_view what) {
  return absl::UnavailableError(fmt::format("{}: {}", what, std::strerror(errno)));
}

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<Addresses> resolve(const std::string& where) {
  const size_t colon = where.rfind(':');
  if (colon == std::string::npos) return absl::InvalidArgumentError(fmt::format("'{}' is not host:port", where));
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const std::string host = where.substr(0, colon);
  const int error = getaddrinfo(host.empty() ? nullptr : host.c_str(), where.c_str() + colon + 1, &hints, &found);
  if (error != 0) return absl::InvalidArgumentError(fmt::format("{}: {}", where, gai_strerror(error)));
  return Addresses(found, &freeaddrinfo);
}

}  // namespace

PairLink::PairLink(PairLink&& other) noexcept : fd_(std::exchange(other.fd_, -1)), leads_(other.leads_) {}

PairLink::~PairLink() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<PairLink> PairLink::fork_two() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return failed("socketpair");
  std::fflush(nullptr);  // else the child prints our buffers again
  const pid_t child = fork_child();
  if (child < 0) return failed("fork");
  const bool leads = child > 0;
  close(ends[leads ? 1 : 0]);
  return PairLink(ends[leads ? 0 : 1], leads);
}

absl::StatusOr<PairLink> PairLink::listen(const std::string& where) {
  const absl::StatusOr<Addresses> address = resolve(where);
  if (!address.ok()) return address.status();
  const int listener = socket((*address)->ai_family, SOCK_STREAM, 0);
  const int yes = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (bind(listener, (*address)->ai_addr, (*address)->ai_addrlen) != 0 || ::listen(listener, 1) != 0) {
    return failed("listen at " + where);
  }
  pollfd waiting{.fd = listener, .events = POLLIN, .revents = 0};
  if (::poll(&waiting, 1, kSilenceDeadline / std::chrono::milliseconds(1)) <= 0) {
    return absl::DeadlineExceededError(fmt::format("no process connected to {}", where));
  }
  const int fd = accept(listener, nullptr, nullptr);
  close(listener);
  if (fd < 0) return failed("accept");
  return PairLink(fd, /*leads=*/false);
}

absl::StatusOr<PairLink> PairLink::connect(const std::string& where) {
  const absl::StatusOr<Addresses> address = resolve(where);
  if (!address.ok()) return address.status();
  const TimePoint deadline = Clock::now() + kLinkConnectDeadline;
  while (true) {
    const int fd = socket((*address)->ai_family, SOCK_STREAM, 0);
    if (::connect(fd, (*address)->ai_addr, (*address)->ai_addrlen) == 0) {
      const int yes = 1;
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
      return PairLink(fd, /*leads=*/true);
    }
    const absl::Status why = failed("connect to " + where);
    close(fd);
    if (Clock::now() > deadline) return why;
    usleep(100'000);
  }
}

absl::Status PairLink::say(const std::string& text) {
  const auto bytes = static_cast<uint32_t>(text.size());
  std::string framed(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
  framed += text;
  // Short: the socket's buffer holds it.
  const ssize_t sent = send(fd_, framed.data(), framed.size(), MSG_NOSIGNAL);
  return sent == static_cast<ssize_t>(framed.size()) ? absl::OkStatus() : failed("the other process");
}

absl::StatusOr<std::string> PairLink::hear(const std::function<void()>& meanwhile) {
  const TimePoint start = Clock::now();
  uint32_t bytes = 0;
  while (true) {
    meanwhile();
    const Duration waited = Clock::now() - start;
    if (waited > kSilenceDeadline) return absl::DeadlineExceededError("the other process says nothing");
    pollfd waiting{.fd = fd_, .events = POLLIN, .revents = 0};
    if (::poll(&waiting, 1, waited < kEager ? 0 : 1) > 0) break;
  }
  const absl::Status gone = absl::UnavailableError("the other process is gone");
  if (recv(fd_, &bytes, sizeof(bytes), MSG_WAITALL) != sizeof(bytes)) return gone;
  std::string text(bytes, '\0');
  if (recv(fd_, text.data(), bytes, MSG_WAITALL) != static_cast<ssize_t>(bytes)) return gone;
  return text;
}

}  // namespace gradrail::bench
