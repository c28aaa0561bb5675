#include "bench/put/link.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include "base/net_address.h"
#include "base/parse_number.h"
#include "base/resource_limits.h"
#include "base/status.h"
#include "bench/driver/children.h"
#include "fmt/format.h"
#include "gradrail/clock.h"

namespace gradrail::bench {
namespace {

constexpr Duration kSilenceDeadline = std::chrono::seconds(120);  // the other may be measuring, in an emulated machine
constexpr Duration kLinkConnectDeadline = std::chrono::seconds(20);  // the other may be starting
constexpr uint32_t kFailure = 1u << 31;                     // flag in the length of a message: the reason of a failure
constexpr Duration kEager = std::chrono::milliseconds(20);  // time for the last notices to leave

absl::Status failed(std::string_view what) {
  return absl::UnavailableError(fmt::format("{}: {}", what, std::strerror(errno)));
}

absl::StatusOr<NetAddress> address_of(const std::string& where) {
  const size_t colon = where.rfind(':');
  const std::optional<uint16_t> port =
      colon == std::string::npos ? std::nullopt : parse_number<uint16_t>(std::string_view(where).substr(colon + 1));
  if (!port) return absl::InvalidArgumentError(fmt::format("'{}' is not host:port", where));
  const absl::StatusOr<std::vector<NetAddress>> found = resolve(where.substr(0, colon), *port);
  if (!found.ok()) return absl::InvalidArgumentError(fmt::format("{}: {}", where, message_of(found.status())));
  return found->front();
}

}  // namespace

absl::StatusOr<PairLink> PairLink::fork_two() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return kernel_refusal("socketpair", errno);
  std::fflush(nullptr);  // otherwise the child prints our buffers again
  const pid_t child = fork_child();
  if (child < 0) return kernel_refusal("fork", errno);
  // The parent leads: the caller waits for its exit code.
  const bool leads = child > 0;
  FileDescriptor first(ends[0]), second(ends[1]);
  return PairLink(leads ? std::move(first) : std::move(second), leads);
}

absl::StatusOr<PairLink> PairLink::listen(const std::string& where) {
  GRADRAIL_ASSIGN_OR_RETURN(const NetAddress address, address_of(where));
  const FileDescriptor listener(socket(address.family(), SOCK_STREAM, 0));
  const int yes = 1;
  // A former run's connection in TIME_WAIT would otherwise block the port.
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (bind(listener.get(), address.get(), address.bytes) != 0 || ::listen(listener.get(), 1) != 0) {
    return failed("listen at " + where);
  }
  pollfd waiting{.fd = listener.get(), .events = POLLIN, .revents = 0};
  if (::poll(&waiting, 1, kSilenceDeadline / std::chrono::milliseconds(1)) <= 0) {
    return absl::DeadlineExceededError(fmt::format("no process connected to {}", where));
  }
  FileDescriptor fd(accept(listener.get(), nullptr, nullptr));
  if (!fd) return failed("accept");
  return PairLink(std::move(fd), /*leads=*/false);
}

absl::StatusOr<PairLink> PairLink::connect(const std::string& where) {
  GRADRAIL_ASSIGN_OR_RETURN(const NetAddress address, address_of(where));
  const TimePoint deadline = Clock::now() + kLinkConnectDeadline;
  while (true) {
    FileDescriptor fd(socket(address.family(), SOCK_STREAM, 0));
    if (::connect(fd.get(), address.get(), address.bytes) == 0) {
      const int yes = 1;
      // say() sends a message as a whole: it need not wait for an acknowledgement of the one before.
      setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
      return PairLink(std::move(fd), /*leads=*/true);
    }
    // A refused connection is expected while the other process starts.
    const absl::Status why = failed("connect to " + where);
    if (Clock::now() > deadline) return why;
    usleep(100'000);
  }
}

absl::Status PairLink::say(const std::string& text) { return send_frame(text, 0); }

void PairLink::say_failure(const absl::Status& why) { send_frame(message_of(why), kFailure).IgnoreError(); }

absl::Status PairLink::send_frame(std::string_view text, uint32_t flags) {
  const auto bytes = static_cast<uint32_t>(text.size()) | flags;
  // The length is in the byte order of the host: both ends must have the same one.
  std::string framed(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
  framed += text;
  // Short: the socket's buffer holds it.
  // MSG_NOSIGNAL: a lost peer is an error here, not the end of this process by SIGPIPE.
  const ssize_t sent = send(fd_.get(), framed.data(), framed.size(), MSG_NOSIGNAL);
  return sent == static_cast<ssize_t>(framed.size()) ? absl::OkStatus() : failed("the other process");
}

absl::StatusOr<std::string> PairLink::hear(const std::function<void()>& meanwhile) {
  const TimePoint start = Clock::now();
  uint32_t bytes = 0;
  while (true) {
    meanwhile();
    const Duration waited = Clock::now() - start;
    if (waited > kSilenceDeadline) return absl::DeadlineExceededError("the other process says nothing");
    pollfd waiting{.fd = fd_.get(), .events = POLLIN, .revents = 0};
    if (::poll(&waiting, 1, waited < kEager ? 0 : 1) > 0) break;
  }
  const absl::Status gone = absl::UnavailableError("the other process is gone");
  if (recv(fd_.get(), &bytes, sizeof(bytes), MSG_WAITALL) != sizeof(bytes)) return gone;
  std::string text(bytes & ~kFailure, '\0');
  if (recv(fd_.get(), text.data(), text.size(), MSG_WAITALL) != static_cast<ssize_t>(text.size())) return gone;
  if ((bytes & kFailure) != 0) return absl::UnavailableError(text);
  return text;
}

}  // namespace gradrail::bench
