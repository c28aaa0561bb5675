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
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/net_address.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/admission/old_client.h"
#include "ps/protocol/cluster_spec.h"
#include "ps/protocol/training.h"
#include "spdlog/spdlog.h"

namespace gradrail::ps {
namespace {

constexpr size_t kMaxRequestBytes = 2048;  // a proof has 98 characters
constexpr int kBacklog = 1024;
constexpr auto kPause = std::chrono::milliseconds(10);
// Debian's absl has its own string_view.
constexpr absl::string_view kPreface(kHttp2Preface.data(), kHttp2Preface.size());
constexpr absl::string_view kTls(kTlsBegin.data(), kTlsBegin.size());

struct Listener {
  FileDescriptor socket;
  uint16_t port = 0;
  int error = 0;  ///< errno; 0: it listens
};

uint16_t& port_field(NetAddress& address) {
  return address.family() == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address.storage).sin6_port
                                      : reinterpret_cast<sockaddr_in&>(address.storage).sin_port;
}

/// `only_v6`: an IPv6 socket does not take IPv4 connections, because another socket has the IPv4 address.
Listener listen_at(NetAddress address, bool only_v6) {
  Listener listener;
  listener.socket.reset(socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int fd = listener.socket.get();
  const int on = 1;
  const int v6 = only_v6 ? 1 : 0;
  const bool good = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
                    (address.family() != AF_INET6 || setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &v6, sizeof(v6)) == 0) &&
                    bind(fd, address.get(), address.bytes) == 0 && ::listen(fd, kBacklog) == 0 &&
                    getsockname(fd, address.get(), &address.bytes) == 0;
  if (!good) listener.error = errno;
  listener.port = ntohs(port_field(address));
  return listener;
}

absl::Status cannot_listen(const std::string& address, int error) {
  if (error == EADDRINUSE)
    return absl::AlreadyExistsError(fmt::format("cannot listen on {}: the port is in use", address));
  if (error == EADDRNOTAVAIL)
    return absl::NotFoundError(fmt::format("cannot listen on {}: the address is not one of this host", address));
  return absl::FailedPreconditionError(fmt::format("cannot listen on {}: {}", address, std::strerror(error)));
}

/// The value of a header; "": the request has none. Names of headers have no case.
absl::string_view header(absl::string_view request, absl::string_view name) {
  for (const absl::string_view line : absl::StrSplit(request, "\r\n")) {
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (absl::EqualsIgnoreCase(parts.first, name)) return absl::StripAsciiWhitespace(parts.second);
  }
  return "";
}

std::string response(std::string_view status, std::string_view body) {
  return fmt::format("HTTP/1.1 {}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
                     status, body.size(), body);
}

/// The buffer of a new connection is empty and takes the whole answer. A peer that is gone gets none.
void send_text(const FileDescriptor& socket, std::string_view text) {
  [[maybe_unused]] const ssize_t sent = send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

std::string version_of_old_client() { return fmt::format("{} or older", kLastVersionWithoutGate); }

/// One line for all of them: any process can open such connections, so that they must not fill the log.
void report_old_client(const FileDescriptor& socket, bool& is_reported) {
  if (std::exchange(is_reported, true)) return;
  spdlog::warn("a connection from {} was refused: {}", peer_address(socket.get()).host(),
               other_version(version_of_old_client()));
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
    port_field(each) = htons(port);
    Listener listener = listen_at(each, found->size() > 1);
    if (listener.error == 0) {
      port = listener.port;
      listeners.push_back(std::move(listener.socket));
    } else if (listener.error != EAFNOSUPPORT && listener.error != EADDRNOTAVAIL) {
      // Peers of this address would reach another process.
      return cannot_listen(address, listener.error);
    } else {
      error = listener.error;
    }
  }
  if (listeners.empty()) return cannot_listen(address, error);
  FileDescriptor stop(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop) return absl::ResourceExhaustedError(fmt::format("cannot open an eventfd: {}", std::strerror(errno)));
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

void AdmissionGate::start(Admit admit) {
  GRADRAIL_CHECK(admit != nullptr && !thread_.joinable());
  admit_ = std::move(admit);
  thread_ = std::thread([this] { run(); });
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
    // Before accept_all(): the positions of pending_ and `polled` agree.
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
  for (int i = 0; i < kBacklog; ++i) {
    Pending pending{.socket = FileDescriptor(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)),
                    .request = "",
                    .deadline = Clock::now() + options_.timeout};
    if (!pending.socket) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) return;
      // The listener stays readable. Without descriptors or memory the oldest connection makes room.
      const bool is_full = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
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
  std::array<char, kMaxRequestBytes> bytes;
  const ssize_t got = recv(pending.socket.get(), bytes.data(), bytes.size() - pending.request.size(), 0);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0) return false;
  pending.request.append(bytes.data(), static_cast<size_t>(got));
  const absl::string_view request = pending.request;
  // The bytes of another protocol never become a request.
  const auto may_become = [request](absl::string_view begin) {
    const size_t common = std::min(request.size(), begin.size());
    return request.substr(0, common) == begin.substr(0, common);
  };
  const std::string_view begin = pending.request;
  if (pending.stage != Pending::Stage::request || begin.substr(0, kHttp2Preface.size()) == kHttp2Preface)
    return refuse_old_client(pending);
  if (begin.substr(0, kTlsBegin.size()) == kTlsBegin) {
    report_old_client(pending.socket, has_refused_old_client_);
    send_text(pending.socket, tls_alert());
    return false;
  }
  if (may_become(kPreface) || may_become(kTls)) return true;
  if (!may_become("CONNECT ") && !may_become("GET /")) return false;
  if (!absl::EndsWith(request, "\r\n\r\n")) return request.size() < kMaxRequestBytes;
  answer(pending);
  return false;
}

bool AdmissionGate::refuse_old_client(Pending& pending) {
  using Stage = Pending::Stage;
  if (pending.stage == Stage::request) {
    report_old_client(pending.socket, has_refused_old_client_);
    send_text(pending.socket, http2_settings());
    pending.stage = Stage::old_client;
  }
  const std::optional<uint32_t> call = pending.stage == Stage::refused ? std::nullopt : first_call(pending.request);
  if (call.has_value()) {
    send_text(pending.socket, end_of_call(*call, other_version(version_of_old_client())));
    // The peer reads the answer and closes. A close with unread bytes would discard the answer.
    pending.stage = Stage::refused;
    pending.request.clear();
  }
  return pending.request.size() < kMaxRequestBytes;
}

void AdmissionGate::answer(Pending& pending) {
  const absl::string_view request = pending.request;
  const std::vector<absl::string_view> words = absl::StrSplit(request.substr(0, request.find("\r\n")), ' ');
  if (words[0] == "CONNECT") {
    std::string proof;
    absl::Status admitted = absl::UnauthenticatedError("the proof is not base64");
    if (absl::WebSafeBase64Unescape(header(request, kProofHeader), &proof)) admitted = checker_.check(proof);
    if (!admitted.ok()) return send_text(pending.socket, response("403 Forbidden", message_of(admitted)));
    send_text(pending.socket, "HTTP/1.1 200 OK\r\n\r\n");
    return admit_(std::move(pending.socket));
  }
  absl::string_view path = words.size() > 1 ? words[1] : "";
  std::string client_challenge;
  if (!absl::ConsumePrefix(&path, kChallengePath) || !absl::WebSafeBase64Unescape(path, &client_challenge))
    return send_text(pending.socket, response("404 Not Found", "this port belongs to gradrail"));
  const std::string challenge = checker_.new_challenge();
  send_text(pending.socket,
            response("200 OK", fmt::format("{} {}\n", absl::WebSafeBase64Escape(challenge),
                                           absl::WebSafeBase64Escape(checker_.answer(client_challenge, challenge)))));
}

}  // namespace gradrail::ps
