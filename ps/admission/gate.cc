#include "ps/admission/gate.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/net_address.h"
#include "base/resource_limits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gradrail/cluster.h"
#include "ps/admission/gate_text.h"

namespace gradrail::ps {
namespace {

constexpr int kMaxAccepts = 1024;  // maximum in one round
constexpr auto kPause = std::chrono::milliseconds(10);

absl::Status cannot_listen(const std::string& address, const NetAddress& tried, int error) {
  if (lacks_port(error, tried, true))
    return absl::ResourceExhaustedError(
        fmt::format("cannot listen on {}: {}", address, socket_error_text(error, tried, true)));
  if (error == EADDRINUSE)
    return absl::AlreadyExistsError(fmt::format("cannot listen on {}: the port is in use", address));
  if (error == EADDRNOTAVAIL)
    return absl::NotFoundError(fmt::format("cannot listen on {}: the address is not one of this host", address));
  const absl::Status why = kernel_refusal(fmt::format("cannot listen on {}", address), error);
  if (absl::IsResourceExhausted(why)) return why;
  return absl::FailedPreconditionError(
      fmt::format("cannot listen on {}: {}", address, socket_error_text(error, tried, true)));
}

/// Sends the whole answer, which fits into the empty buffer of a new connection. A peer that has disconnected gets
/// none.
void send_text(const FileDescriptor& socket, std::string_view text) {
  [[maybe_unused]] const ssize_t sent = send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

/// Enables the detection of a host that vanishes without a message. The kernel probes an idle connection, which costs
/// no process any time: heartbeats may then be rare.
void detect_vanished_host(int fd, Duration timeout) {
  constexpr int kIdleS = 2, kProbeEveryS = 1;
  const auto set = [fd](int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof(value)); };
  const auto limit = std::chrono::seconds(kIdleS) + std::chrono::ceil<std::chrono::milliseconds>(timeout);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kIdleS);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kProbeEveryS);
  // The option replaces a number of probes, and covers bytes under way too (tcp(7)).
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(std::min<int64_t>(limit.count(), INT_MAX)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<AdmissionGate>> AdmissionGate::listen(const std::string& address, Options options) {
  GRADRAIL_ASSIGN_OR_RETURN(const HostPort where, parse_host_port(address));
  // "" is 0.0.0.0 and ::, of which a host without IPv6 has the first only.
  absl::StatusOr<std::vector<NetAddress>> found =
      resolve(std::string_view(where.host) == "::" ? "" : where.host, where.port);
  if (!found.ok()) {
    return absl::FailedPreconditionError(
        fmt::format("cannot listen on {}: {}: is the host name right?", address, message_of(found.status())));
  }
  std::vector<FileDescriptor> listeners;
  uint16_t port = where.port;
  int error = 0;
  // A name can have an IPv4 and an IPv6 address. All of them get the port that the first one gets.
  for (NetAddress& each : *found) {
    each.set_port(port);
    FileDescriptor listener;
    const int failed = listen_at(each, found->size() > 1, listener);
    if (failed == 0) {
      port = local_address(listener.get()).port();
      listeners.push_back(std::move(listener));
    } else if (failed != EAFNOSUPPORT && failed != EADDRNOTAVAIL) {
      // Peers of this address would reach another process.
      return cannot_listen(address, each, failed);
    } else {
      error = failed;
    }
  }
  if (listeners.empty()) return cannot_listen(address, found->back(), error);
  FileDescriptor stop(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop) return kernel_refusal("eventfd", errno);
  return std::unique_ptr<AdmissionGate>(
      new AdmissionGate(std::move(options), std::move(listeners), port, std::move(stop)));
}

AdmissionGate::AdmissionGate(Options options, std::vector<FileDescriptor> listeners, uint16_t port, FileDescriptor stop)
    : options_(std::move(options)),
      listeners_(std::move(listeners)),
      port_(port),
      stop_(std::move(stop)),
      checker_(options_.secret) {}

AdmissionGate::~AdmissionGate() {
  if (!thread_.joinable()) return;
  GRADRAIL_CHECK(eventfd_write(stop_.get(), 1) == 0);
  thread_.join();
}

absl::Status AdmissionGate::start(Admit admit) {
  GRADRAIL_CHECK(admit != nullptr && !thread_.joinable());
  admit_ = std::move(admit);
  GRADRAIL_ASSIGN_OR_RETURN(thread_, start_thread("that admits peers", [this] { run(); }));
  return absl::OkStatus();
}

void AdmissionGate::run() {
  pthread_setname_np(pthread_self(), "gradrail-gate");
  std::vector<pollfd> polled;
  while (true) {
    polled.assign(1, {.fd = stop_.get(), .events = POLLIN, .revents = 0});
    for (const FileDescriptor& listener : listeners_)
      polled.push_back({.fd = listener.get(), .events = POLLIN, .revents = 0});
    for (const Pending& each : pending_) polled.push_back({.fd = each.socket.get(), .events = POLLIN, .revents = 0});
    int wait_ms = -1;
    if (!pending_.empty()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(pending_.front().deadline - Clock::now());
      wait_ms = std::max(0, static_cast<int>(left.count()));
    }
    if (poll(polled.data(), polled.size(), wait_ms) < 0) {
      GRADRAIL_CHECK(errno == EINTR);
      continue;
    }
    if (polled[0].revents != 0) return;
    const TimePoint now = Clock::now();
    const size_t first = 1 + listeners_.size();
    // This loop precedes accept_all(): the positions of pending_ and `polled` agree.
    for (size_t i = 0; i < pending_.size(); ++i) {
      const bool stays = polled[first + i].revents == 0 || receive(pending_[i]);
      if (!stays || pending_[i].deadline <= now) pending_[i].socket.reset();
    }
    std::erase_if(pending_, [](const Pending& each) { return !each.socket; });
    for (size_t i = 0; i < listeners_.size(); ++i) {
      if (polled[1 + i].revents != 0) accept_all(listeners_[i].get());
    }
  }
}

void AdmissionGate::accept_all(int listener) {
  // A flood of connections must not keep the thread from the pending ones.
  for (int i = 0; i < kMaxAccepts; ++i) {
    Pending pending{.socket = FileDescriptor(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)),
                    .request = "",
                    .deadline = Clock::now() + options_.timeout};
    if (!pending.socket) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) return;
      // The listener stays readable. Without descriptors or memory the oldest connection makes room.
      const bool is_full = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      if (is_full) {
        rate_limited_log_.write(fmt::format("port {} cannot accept a connection: {}{}", port_, std::strerror(errno),
                                            errno == EMFILE ? " (raise `ulimit -n`)" : ""));
      }
      if (is_full && !pending_.empty()) pending_.erase(pending_.begin());
      std::this_thread::sleep_for(kPause);
      return;
    }
    const int on = 1;
    setsockopt(pending.socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    // The request has usually arrived. Only silent connections count, so that a flood of them closes no other one.
    if (!receive(pending)) continue;
    if (pending_.size() >= options_.max_pending) pending_.erase(pending_.begin());
    pending_.push_back(std::move(pending));
  }
}

bool AdmissionGate::receive(Pending& pending) {
  std::array<char, kMaxGateTextBytes> bytes;
  const ssize_t got = recv(pending.socket.get(), bytes.data(), bytes.size() - pending.request.size(), 0);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0) return false;
  pending.request.append(bytes.data(), static_cast<size_t>(got));
  if (!may_become_request(pending.request)) return false;
  if (!is_whole_request(pending.request)) return pending.request.size() < kMaxGateTextBytes;
  answer(pending);
  return false;
}

void AdmissionGate::report_refusal(const Pending& pending, const absl::Status& why) {
  rate_limited_log_.write(
      fmt::format("a task at {} was refused: {}", peer_address(pending.socket.get()).host(), message_of(why)));
}

void AdmissionGate::answer(Pending& pending) {
  const absl::StatusOr<GateRequest> request = parse_gate_request(pending.request);
  if (absl::IsNotFound(request.status()))
    return send_text(pending.socket, gate_response("404 Not Found", message_of(request.status())));
  if (request.ok() && !request->is_connect) {
    const std::string challenge = checker_.new_challenge();
    const GateAnswer answer = {.challenge = challenge, .answer = checker_.answer(request->value, challenge)};
    return send_text(pending.socket, gate_response("200 OK", gate_answer_body(answer)));
  }
  const absl::Status admitted = request.ok() ? checker_.check(request->value) : request.status();
  if (!admitted.ok()) {
    report_refusal(pending, admitted);
    return send_text(pending.socket, gate_response("403 Forbidden", message_of(admitted)));
  }
  if (options_.vanish_timeout > Duration::zero()) detect_vanished_host(pending.socket.get(), options_.vanish_timeout);
  send_text(pending.socket, "HTTP/1.1 200 OK\r\n\r\n");
  admit_(std::move(pending.socket));
}

}  // namespace gradrail::ps
