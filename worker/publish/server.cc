#include "worker/publish/server.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/log.h"
#include "base/net_address.h"
#include "base/random_bits.h"
#include "base/resource_limits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gradrail/cluster.h"

namespace gradrail::publish {
namespace {

constexpr int kTickMs = 500;                                 // the resolution of the time limits
constexpr int kLastTickMs = 5;                               // no event shows the acknowledgement of the end
constexpr Duration kIdleInterval = std::chrono::seconds(5);  // a reader expects a frame within 30 s
constexpr Duration kLastWords = std::chrono::seconds(1);     // time for readers to read the end after the deadline

/// Errors  Those of Server::start().
absl::StatusOr<FileDescriptor> open_listener(const std::string& address) {
  GRADRAIL_ASSIGN_OR_RETURN(const HostPort place, parse_host_port(address));
  GRADRAIL_ASSIGN_OR_RETURN(std::vector<NetAddress> found, resolve(place.host, place.port));
  FileDescriptor listener;
  const int error = listen_at(found.front(), false, listener);
  if (error == 0) return listener;
  const std::string text = fmt::format("publisher cannot listen at {}: {}", address, std::strerror(error));
  if (lacks_port(error, found.front(), true))
    return absl::ResourceExhaustedError(
        fmt::format("publisher cannot listen at {}: {}", address, socket_error_text(error, found.front(), true)));
  if (error == EADDRINUSE) return absl::AlreadyExistsError(text + "; choose another port, or 0 for any");
  return absl::UnavailableError(text + "; listen at an address of this host, or at 0.0.0.0");
}

/// A reader between two requests may lose its host: the kernel then ends the connection.
void keep_alive(int fd) {
  const auto set = [fd](int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof(value)); };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::start(ServerOptions options, const VersionStore& store) {
  GRADRAIL_ASSIGN_OR_RETURN(FileDescriptor listener, open_listener(options.listen));
  GRADRAIL_ASSIGN_OR_RETURN(Pipe wake, open_pipe());
  for (const int fd : {wake.reader.get(), wake.writer.get()}) fcntl(fd, F_SETFL, O_NONBLOCK);
  std::unique_ptr<Server> server(new Server(std::move(options), store, std::move(listener), std::move(wake)));
  GRADRAIL_ASSIGN_OR_RETURN(server->thread_, start_thread("of a publisher", [raw = server.get()] { raw->serve(); }));
  return server;
}

Server::Server(ServerOptions options, const VersionStore& store, FileDescriptor listener, Pipe wake)
    : options_(std::move(options)),
      store_(store),
      listener_(std::move(listener)),
      wake_(std::move(wake)),
      address_(local_address(listener_.get()).text()),
      run_(random_bits()) {}

Server::~Server() { finish(Clock::now()); }

void Server::notify() {
  const char byte = 0;
  // A full pipe wakes the thread as well.
  if (write(wake_.writer.get(), &byte, 1) < 0 && errno != EAGAIN)
    log_error("publisher: write to a pipe: {}", std::strerror(errno));
}

void Server::finish(TimePoint deadline) {
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(mutex_);
    finishing_ = true;
    finish_by_ = deadline;
  }
  notify();
  thread_.join();
  listener_.reset();
}

ServerStats Server::stats() const {
  const MutexLock lock(mutex_);
  return stats_;
}

void Server::serve() {
  bool finishing = false;
  while (true) {
    wait_for_events(finishing ? kLastTickMs : kTickMs);
    std::erase_if(readers_, [this](const std::unique_ptr<ReaderLink>& reader) { return !serve_one(*reader); });
    const bool finished = finish_readers();
    const MutexLock lock(mutex_);
    stats_.readers = readers_.size();
    finishing = finishing_;
    if (finished) break;
  }
  readers_.clear();
}

void Server::wait_for_events(int limit_ms) {
  std::vector<pollfd> waits = {{.fd = wake_.reader.get(), .events = POLLIN, .revents = 0},
                               {.fd = listener_.get(), .events = POLLIN, .revents = 0}};
  for (const auto& reader : readers_) waits.push_back({.fd = reader->fd(), .events = reader->events(), .revents = 0});
  poll(waits.data(), waits.size(), limit_ms);
  char bytes[64];
  while (::read(wake_.reader.get(), bytes, sizeof(bytes)) > 0) {
  }
  if (waits[1].revents != 0) accept_readers();
}

void Server::accept_readers() {
  while (true) {
    FileDescriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) return;
    keep_alive(socket.get());
    std::string peer = peer_address(socket.get()).text();
    readers_.push_back(std::make_unique<ReaderLink>(std::move(socket), std::move(peer), options_.secret));
    if (readers_.size() <= options_.max_readers) continue;
    // A connection that has proven nothing does not use the place of a reader.
    const auto unproven =
        std::find_if(readers_.begin(), readers_.end() - 1, [](const auto& one) { return one->is_greeting(); });
    if (unproven != readers_.end() - 1) {
      readers_.erase(unproven);
    } else {
      readers_.back()->end(absl::ResourceExhaustedError(fmt::format(
          "the publisher at {} has {} readers already, its limit (max_readers)", address_, options_.max_readers)));
    }
  }
}

bool Server::serve_one(ReaderLink& reader) {
  absl::Status status = reader.read(run_, store_.model().text());
  if (status.ok()) {
    ReaderTotals totals;
    reader.answer(store_, totals);
    const MutexLock lock(mutex_);
    stats_.sent.full_count += totals.full_count;
    stats_.sent.full_bytes += totals.full_bytes;
    stats_.sent.delta_count += totals.delta_count;
    stats_.sent.delta_bytes += totals.delta_bytes;
  }
  if (status.ok()) status = reader.write();
  const auto stall_limit = from_seconds(options_.reader_timeout_s);
  if (status.ok()) status = reader.check_time(stall_limit, kIdleInterval);
  if (status.ok()) return !reader.is_closed();
  if (absl::IsUnavailable(status)) {
    rate_limited_log_.write(fmt::format("publisher {}: {}", address_, message_of(status)), LogLevel::info);
  } else {
    rate_limited_log_.write(fmt::format("publisher {}: {}; the connection is closed", address_, message_of(status)));
    const MutexLock lock(mutex_);
    ++stats_.readers_lost;
  }
  return false;
}

bool Server::finish_readers() {
  TimePoint deadline;
  {
    const MutexLock lock(mutex_);
    if (!finishing_) return false;
    deadline = finish_by_;
  }
  const StoreStats store = store_.stats();
  const bool late = Clock::now() >= deadline;
  const absl::Status reason =
      absl::AbortedError(store.newest ? fmt::format("the publisher at {} has ended: version {} was its last", address_,
                                                    store.newest->version)
                                      : fmt::format("the publisher at {} has ended without a version", address_));
  for (const auto& reader : readers_) {
    if (late || !store.newest || reader->is_at(store.newest->digest)) reader->end(reason);
    if (reader->write().ok()) continue;  // an error shows itself in the next read()
  }
  // A reader that computes between two calls of next() does not read now, and finds the end later.
  std::erase_if(readers_, [](const std::unique_ptr<ReaderLink>& reader) { return reader->is_delivered(); });
  return readers_.empty() || Clock::now() >= deadline + kLastWords;
}

}  // namespace gradrail::publish
