#include "ps/protocol/json_link.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "base/status.h"
#include "fmt/format.h"
#include "ps/protocol/cluster_spec.h"

namespace gradrail::ps {
namespace {

constexpr auto kBetweenTries = std::chrono::milliseconds(100);
constexpr auto kOneTry = std::chrono::seconds(5);

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<Addresses> resolve(const std::string& address, int flags) {
  const absl::StatusOr<HostPort> parsed = parse_host_port(address);
  if (!parsed.ok()) return parsed.status();
  const addrinfo hints{.ai_flags = flags, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  const int failure = getaddrinfo(parsed->host.c_str(), std::to_string(parsed->port).c_str(), &hints, &found);
  if (failure != 0) {  // a name may be one that is known soon
    const auto code = failure == EAI_AGAIN || failure == EAI_NONAME ? absl::StatusCode::kUnavailable
                                                                    : absl::StatusCode::kInvalidArgument;
    return absl::Status(code, fmt::format("{}: {}", address, gai_strerror(failure)));
  }
  return Addresses(found, freeaddrinfo);
}

/// Waits until the descriptor is ready; false at the deadline.
bool ready(int fd, int16_t events, TimePoint deadline) {
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd wait{.fd = fd, .events = events, .revents = 0};
    const int count = poll(&wait, 1, left <= 0 ? 0 : static_cast<int>(std::min<int64_t>(left + 1, 1 << 30)));
    if (count < 0 && errno == EINTR) continue;
    return count > 0;
  }
}

/// 0, or the errno of the attempt.
int connect_within(int fd, const addrinfo& address, TimePoint deadline) {
  if (fd < 0) return errno;
  if (::connect(fd, address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (!ready(fd, POLLOUT, deadline)) return ETIMEDOUT;
  int error = 0;
  socklen_t length = sizeof(error);
  return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

}  // namespace

JsonLink::JsonLink(JsonLink&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

JsonLink::~JsonLink() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<JsonLink> JsonLink::connect(const std::string& address, TimePoint deadline) {
  while (true) {
    const absl::StatusOr<Addresses> found = resolve(address, 0);
    if (!found.ok() && !absl::IsUnavailable(found.status())) return found.status();
    int error = EHOSTUNREACH;
    for (const addrinfo* each = found.ok() ? found->get() : nullptr; each != nullptr; each = each->ai_next) {
      JsonLink link(socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      error = connect_within(link.fd_, *each, std::min(deadline, Clock::now() + kOneTry));
      const int on = 1;
      setsockopt(link.fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      setsockopt(link.fd_, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));  // a host that loses power says nothing
      if (error == 0) return link;
    }
    if (Clock::now() + kBetweenTries > deadline)
      return absl::DeadlineExceededError(
          found.ok() ? fmt::format("no process listens at {} ({})", address, std::strerror(error))
                     : std::string(message_of(found.status())));
    std::this_thread::sleep_for(kBetweenTries);
  }
}

absl::Status JsonLink::move(char* bytes, size_t count, bool out, TimePoint deadline) {
  while (count > 0) {
    if (!ready(fd_, out ? POLLOUT : POLLIN, deadline)) return absl::DeadlineExceededError("does not answer");
    const ssize_t moved =
        out ? ::send(fd_, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(fd_, bytes, count, MSG_DONTWAIT);
    if (moved < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (moved <= 0) return absl::UnavailableError("has ended");
    bytes += moved;
    count -= static_cast<size_t>(moved);
  }
  return absl::OkStatus();
}

absl::Status JsonLink::send(const nlohmann::json& message, TimePoint deadline) {
  std::string text = message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  uint32_t length = htonl(static_cast<uint32_t>(text.size()));
  GRADRAIL_RETURN_IF_ERROR(move(reinterpret_cast<char*>(&length), sizeof(length), true, deadline));
  return move(text.data(), text.size(), true, deadline);
}

absl::StatusOr<nlohmann::json> JsonLink::receive(TimePoint deadline, uint32_t most_bytes) {
  uint32_t length = 0;
  GRADRAIL_RETURN_IF_ERROR(move(reinterpret_cast<char*>(&length), sizeof(length), false, deadline));
  length = ntohl(length);
  if (length > most_bytes) return absl::InvalidArgumentError("speaks another protocol");
  std::string text(length, '\0');
  GRADRAIL_RETURN_IF_ERROR(move(text.data(), text.size(), false, deadline));
  nlohmann::json message = nlohmann::json::parse(text, nullptr, false);
  if (message.is_discarded() || !message.is_object()) return absl::InvalidArgumentError("speaks another protocol");
  return message;
}

std::string JsonLink::local_host() const {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  char host[NI_MAXHOST] = "";
  getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length);
  getnameinfo(reinterpret_cast<sockaddr*>(&address), length, host, sizeof(host), nullptr, 0, NI_NUMERICHOST);
  constexpr std::string_view kMapped = "::ffff:";  // an IPv4 peer at a socket of both
  return std::string_view(host).starts_with(kMapped) ? host + kMapped.size() : host;
}

JsonListener::JsonListener(JsonListener&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

JsonListener::~JsonListener() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<JsonListener> JsonListener::open(const std::string& address) {
  const absl::StatusOr<Addresses> found = resolve(address, AI_PASSIVE);
  if (!found.ok()) return absl::InvalidArgumentError(std::string(message_of(found.status())));
  JsonListener listener(socket((*found)->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1, off = 0;
  if ((*found)->ai_family == AF_INET6)  // [::] accepts IPv4 too, whatever the host's default
    setsockopt(listener.fd_, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  setsockopt(listener.fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(listener.fd_, (*found)->ai_addr, (*found)->ai_addrlen) != 0 || listen(listener.fd_, 128) != 0)
    return absl::FailedPreconditionError(fmt::format("cannot listen at {}: {}", address, std::strerror(errno)));
  return listener;
}

absl::StatusOr<JsonLink> JsonListener::accept(TimePoint deadline) {
  if (!ready(fd_, POLLIN, deadline)) return absl::DeadlineExceededError("no process connected in time");
  JsonLink link(accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC));
  return link;
}

}  // namespace gradrail::ps
