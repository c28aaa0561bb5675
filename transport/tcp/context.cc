// Opening, connecting, closing. The poll loop is in context_progress.cc, accepting in context_accept.cc.
#include "transport/tcp/context.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "transport/tcp/connection.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/memory_region.h"
#include "transport/tcp/native_error.h"

namespace gradrail::transport::tcp {
namespace {

/// Last words need one round trip; a peer that takes longer than this has stopped reading.
constexpr Duration kLingerTime = std::chrono::seconds(2);
/// Number of lingering closes: enough for a restarted peer to refuse every connection at the same time, without keeping
/// descriptors for long.
constexpr size_t kMaxLingeringCloses = 64;
/// Number of buffers for reuse: what one poll of a usual caller can deliver.
constexpr size_t kSpareBuffers = 64;
static_assert(kMaxRefusalBytes <= kMaxMessageBytes);  // one size of buffers for both

std::optional<seal::StreamOptions> stream_options(const std::optional<Encryption>& encryption, const Tuning& tuning) {
  if (!encryption.has_value()) return std::nullopt;
  return seal::StreamOptions{.shared_key = encryption->shared_key, .records_per_key = tuning.records_per_key};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Context>> open(const OpenOptions& options) {
  return open_tuned(options, {.socket = {.vanish_timeout = options.path_timeout}});
}

absl::StatusOr<std::unique_ptr<Context>> open_tuned(const OpenOptions& options, const Tuning& tuning) {
  std::vector<Address> sources;
  if (!options.bind_host.empty()) {
    // All addresses of the name, because a target may be IPv4 or IPv6: source_for() selects the one of its family.
    absl::StatusOr<std::vector<Address>> found = resolve({options.bind_host, 0});
    if (!found.ok()) return absl::InvalidArgumentError(found.status().message());
    sources = *std::move(found);
  }
  FileDescriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return native_error("open epoll", errno);
  FileDescriptor timer(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!timer) return native_error("open timer", errno);
  return std::make_unique<TcpContext>(std::move(sources), tuning, options.encryption, std::move(epoll),
                                      std::move(timer));
}

TcpContext::TcpContext(std::vector<Address> sources, const Tuning& tuning, std::optional<Encryption> encryption,
                       FileDescriptor epoll, FileDescriptor timer)
    : sources_(std::move(sources)),
      tuning_(tuning),
      seal_(stream_options(encryption, tuning)),
      static_pair_(seal_ ? std::optional(seal::KeyPair::generate()) : std::nullopt),
      epoll_(std::move(epoll)),
      timer_(std::move(timer)),
      rate_limited_log_(tuning.rate_limited_log_interval),
      buffers_(kMaxMessageBytes, kSpareBuffers) {
  watch(timer_.get(), &timer_source_, false);
}

TcpContext::~TcpContext() {
  connections_.clear();  // they still use members that are declared after them
  pending_connections_.clear();
  GRADRAIL_CHECK(blocked_count_ == 0);
  GRADRAIL_CHECK(regions_.empty());  // a region must not outlive its Context
}

Capabilities TcpContext::capabilities() const {
  return {.one_sided = false,  // the peer's owner thread must poll for a put to land
          .max_message_bytes = kMaxMessageBytes};
}

absl::StatusOr<std::unique_ptr<MemoryRegion>> TcpContext::register_memory(MemorySpan memory, Access access) {
  return register_region(regions_, memory, access);
}

absl::StatusOr<std::string> TcpContext::listen(const std::string& address) {
  // A former address may be given: its key is not used again.
  GRADRAIL_ASSIGN_OR_RETURN(const HostPort where, parse_host_port(address.substr(0, address.find('#'))));
  const absl::StatusOr<std::vector<Address>> found = resolve(where);
  if (!found.ok()) return absl::InvalidArgumentError(found.status().message());
  absl::Status status = absl::UnavailableError(fmt::format("tcp: no address for {}", address));
  for (const Address& each : *found) {
    absl::StatusOr<FileDescriptor> fd = listen_at(each);
    status = fd.status();
    if (!fd.ok()) continue;
    const std::string text = local_address(fd->get()).text();
    listeners_.push_back(std::make_unique<Listener>(*std::move(fd), text, listeners_.size()));
    watch(listeners_.back()->fd.get(), listeners_.back().get(), false);
    return static_pair_ ? seal::address_with_key(text, static_pair_->public_key()) : text;
  }
  return status;
}

const Address* TcpContext::source_for(int family) const {
  const auto found =
      std::find_if(sources_.begin(), sources_.end(), [&](const Address& each) { return each.family() == family; });
  return found == sources_.end() ? nullptr : &*found;
}

absl::StatusOr<FileDescriptor> TcpContext::connect_any(const std::vector<Address>& targets, TimePoint deadline) {
  absl::Status status = absl::UnavailableError("tcp: the host has no address");
  for (const Address& target : targets) {
    const Address* source = source_for(target.family());
    if (source == nullptr && !sources_.empty()) {
      status = absl::UnavailableError(
          fmt::format("tcp: {} is not of the address family of the source {}", target.text(), sources_[0].text()));
      continue;
    }
    absl::StatusOr<FileDescriptor> fd = connect_to(target, source, tuning_.socket, deadline);
    if (fd.ok()) return fd;
    status = fd.status();
  }
  return status;
}

/// Checks the encryption of an address. A side that encrypts never uses plain data, whatever the address contains.
absl::Status TcpContext::check_encryption(const std::string& address, bool peer_encrypts) const {
  if (peer_encrypts == seal_.has_value()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("tcp: {} {}: give --encrypt-data to all tasks, or to none", address,
                  peer_encrypts ? "encrypts data and this side does not" : "does not encrypt data and this side does"));
}

absl::StatusOr<Connection*> TcpContext::connect(const std::string& sealed_address, TimePoint deadline) {
  GRADRAIL_ASSIGN_OR_RETURN(const seal::SealedAddress sealed, seal::parse_sealed_address(sealed_address));
  const std::string& address = sealed.address;
  GRADRAIL_ASSIGN_OR_RETURN(const HostPort where, parse_host_port(address));
  if (where.host.empty() || where.port == 0) {
    return absl::InvalidArgumentError(fmt::format("tcp: cannot connect to '{}': host and port are needed", address));
  }
  GRADRAIL_RETURN_IF_ERROR(check_encryption(address, sealed.has_key));
  // Pending connections hold a descriptor each as well.
  if (connections_.size() + pending_connections_.size() >= tuning_.max_connections) {
    return absl::ResourceExhaustedError(fmt::format("tcp: more than {} connections", tuning_.max_connections));
  }
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<Address> found, resolve(where));
  GRADRAIL_ASSIGN_OR_RETURN(FileDescriptor fd, connect_any(found, deadline));
  auto seal = seal_ ? std::make_unique<seal::SealedStream>(*seal_, sealed.key) : nullptr;
  connections_.push_back(
      std::make_unique<TcpConnection>(*this, std::move(fd), TcpConnection::Side::connected, std::move(seal)));
  connections_.back()->start_handshake();
  watch_peers();
  return connections_.back().get();
}

void TcpContext::close(Connection* connection) {
  auto* const peer = static_cast<TcpConnection*>(connection);
  const auto place =
      std::find_if(connections_.begin(), connections_.end(), [&](const auto& each) { return each.get() == peer; });
  GRADRAIL_CHECK(place != connections_.end());
  // The call is first: its last flush may report completions, which forget() then removes (invariant 3).
  peer->close_silently();
  ready_.forget(connection);
  std::erase(to_flush_, peer);
  std::erase(to_read_, peer);
  connections_.erase(place);
}

void TcpContext::watch(int fd, EventSource* source, bool writable_too) {
  epoll_event event{};
  event.events = EPOLLIN | (writable_too ? EPOLLOUT : 0U);
  event.data.ptr = source;
  // MOD first: EPOLLOUT changes often, and a descriptor is added only once.
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) == 0) return;
  GRADRAIL_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0);
}

void TcpContext::unwatch(int fd) { epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

void TcpContext::close_lingering(FileDescriptor fd, std::string final_bytes) {
  if (lingering_closes_.size() >= kMaxLingeringCloses) {
    // The oldest has had the most time. Events of the current batch may still point to it, so it is destroyed after
    // them (invariant 2).
    unwatch(lingering_closes_.front()->fd());
    lingering_closes_to_reap_.push_back(std::move(lingering_closes_.front()));
    lingering_closes_.pop_front();
  }
  auto lingering_close =
      std::make_unique<LingeringClose>(std::move(fd), std::move(final_bytes), Clock::now() + kLingerTime);
  if (!lingering_close->progress()) return;
  watch(lingering_close->fd(), lingering_close.get(), lingering_close->writing());
  schedule(lingering_close->deadline());
  lingering_closes_.push_back(std::move(lingering_close));
}

}  // namespace gradrail::transport::tcp
