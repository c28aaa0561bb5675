// Opening, connecting, closing. The poll loop is in context_progress.cc.
#include "transport/ofi/context.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "transport/common/native_error.h"
#include "transport/ofi/connection.h"
#include "transport/ofi/native_error.h"
#include "transport/tcp/context.h"
#include "transport/tcp/native_error.h"

namespace gradrail::transport::ofi {
namespace {

/// Time limit of connect(). A peer that polls answers within milliseconds, and posted operations leave immediately.
/// connect() does not wait longer for a busy peer: its hello may arrive later, and posted operations wait for it.
constexpr Duration kConnectTime = std::chrono::seconds(1);
/// Delay of the close. The peer has then received the end over its side channel, and has sent its pending data. The
/// delay is short, since an endpoint can take 10 MB (shm).
constexpr Duration kDeferredCloseTime = std::chrono::milliseconds(300);

}  // namespace

absl::StatusOr<std::unique_ptr<Context>> open(const OpenOptions& options) {
  common::environment_text("FI_");  // precedes the additions of prepare_environment()
  absl::StatusOr<std::unique_ptr<Context>> context = OfiContext::create(options);
  if (!context.ok()) return common::with_environment(context.status(), "FI_");
  return context;
}

absl::StatusOr<std::unique_ptr<Context>> OfiContext::create(const OpenOptions& options) {
  std::unique_ptr<OfiContext> context(new OfiContext());
  GRADRAIL_ASSIGN_OR_RETURN(Provider provider, choose_provider(options));
  if (!provider.may_be_used_here()) {
    return absl::FailedPreconditionError(
        "ofi: a forked process cannot use the RDMA devices that its parent has used: start it by exec, or fork before "
        "the first use");
  }
  context->path_timeout_ = options.path_timeout;
  context->provider_ = std::make_unique<Provider>(std::move(provider));
  fid_fabric* fabric = nullptr;
  const int error = fi_fabric(context->provider_->info->fabric_attr, &fabric, nullptr);
  if (error != 0) return native_error("open fabric of " + context->provider_->name, -error);
  context->fabric_.reset(fabric);
  GRADRAIL_ASSIGN_OR_RETURN(context->default_domain_, context->open_domain());
  GRADRAIL_RETURN_IF_ERROR(context->check_peer_to_peer());
  GRADRAIL_ASSIGN_OR_RETURN(std::unique_ptr<Context> tcp_context,
                            tcp::open({.bind_host = options.bind_host, .path_timeout = options.path_timeout}));
  context->side_channels_ = std::make_unique<common::SideChannels>(std::move(tcp_context));
  context->epoll_ = FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  context->timer_ = FileDescriptor(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!context->epoll_ || !context->timer_) return tcp::native_error("open epoll and timer", errno);
  context->watch(context->side_channels_->wait_fd());
  context->watch(context->timer_.get());
  return context;
}

// Checks peer-to-peer transfers with an endpoint that is not used otherwise. The test precedes the registration of
// regions that could fail later.
absl::Status OfiContext::check_peer_to_peer() {
  if (!provider_->device_memory || provider_->connects) return absl::OkStatus();
  GRADRAIL_ASSIGN_OR_RETURN(const std::unique_ptr<Endpoint> tried,
                            Endpoint::open(fabric_.get(), *default_domain_, /*accepts=*/false));
  if (!tried->refuses_peer_to_peer()) return absl::OkStatus();
  provider_->gpu = GpuTransferSupport::none(fmt::format(kWouldCopy, provider_->name));
  return absl::OkStatus();
}

OfiContext::~OfiContext() {
  GRADRAIL_CHECK(regions_.empty());  // a region must not outlive its Context
  ready_.clear();
  connections_.clear();  // they still use members that are declared after them
  // Domain and fabric end next, and fi_close fails as long as an endpoint is open (handle.h).
  while (!deferred_closes_.empty()) {
    reap_deferred_closes(Clock::now());
    pollfd nothing{.fd = -1, .events = 0, .revents = 0};
    ::poll(&nothing, 1, 1);
  }
}

Capabilities OfiContext::capabilities() const {
  return {.one_sided = provider_->rdma,  // otherwise the provider copies when its owner polls
          .gpu = provider_->gpu,
          .ordered_puts = provider_->ordered,
          .max_message_bytes = kMaxMessageBytes,
          .immediate_bits = provider_->immediate_bits};
}

absl::StatusOr<std::unique_ptr<Domain>> OfiContext::open_domain() { return Domain::open(*provider_, fabric_.get()); }

absl::StatusOr<std::unique_ptr<MemoryRegion>> OfiContext::register_memory(MemorySpan memory, Access access) {
  GRADRAIL_RETURN_IF_ERROR(check_memory("ofi", memory, provider_->gpu));
  auto region = std::make_unique<Region>(regions_, memory, access);
  // The registration is here and not at the first use: the user should learn that the limit on locked memory is too low
  // before peers connect. FI_MR_ENDPOINT: a region is registered for an endpoint, and none exists yet.
  if (!provider_->binds_regions) {
    absl::Status status = access == Access::local ? region->descriptor_in(*default_domain_).status()
                                                  : region->open_in(*default_domain_).status();
    if (!status.ok()) return status;
  }
  return region;
}

absl::StatusOr<std::string> OfiContext::listen(const std::string& address) { return side_channels_->listen(address); }

absl::StatusOr<Connection*> OfiContext::connect(const std::string& address, TimePoint deadline) {
  GRADRAIL_ASSIGN_OR_RETURN(Connection* const side_channel, side_channels_->connect(address, deadline));
  auto connection = std::make_unique<OfiConnection>(*this, side_channel, OfiConnection::Side::connected, deadline);
  GRADRAIL_RETURN_IF_ERROR(connection->start_handshake());
  connections_.push_back(std::move(connection));
  return finish_connect(connections_.back().get(), deadline);
}

absl::StatusOr<Connection*> OfiContext::finish_connect(OfiConnection* connection, TimePoint deadline) {
  const TimePoint until = std::min(deadline, Clock::now() + kConnectTime);
  room_ = SIZE_MAX;  // the next poll takes events that arrive for others meanwhile
  while (!connection->ready() && !connection->lost() && Clock::now() < until) {
    poll_side_channels();
    connection->progress();
    // The wait is at most 1 ms: a provider without wait objects wakes no descriptor.
    pollfd waiting{.fd = epoll_.get(), .events = POLLIN, .revents = 0};
    ::poll(&waiting, 1, 1);
  }
  if (!connection->lost()) return connection;
  const absl::Status cause = connection->cause();
  close(connection);
  return cause;
}

void OfiContext::close(Connection* connection) {
  const auto place = std::find_if(connections_.begin(), connections_.end(),
                                  [&](const auto& each) { return each.get() == connection; });
  GRADRAIL_CHECK(place != connections_.end());
  ready_.forget(connection);
  // The next poll() would release the buffers of these messages through their connection.
  std::erase_if(ready_.delivered(), [&](const MessageSlot& each) { return each.connection == connection; });
  connections_.erase(place);
}

void OfiContext::defer_close(std::shared_ptr<Link> link) {
  if (!provider_->lingers) return link->shut();
  const TimePoint until = Clock::now() + kDeferredCloseTime;
  GRADRAIL_CHECK(deferred_closes_.empty() || deferred_closes_.back().until <= until);  // the oldest expires first
  deferred_closes_.push_back({std::move(link), until});
}

void OfiContext::watch(int fd) {
  if (fd < 0) return;
  epoll_event event{};
  event.events = EPOLLIN;
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
}

void OfiContext::unwatch(int fd) {
  if (fd >= 0) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

}  // namespace gradrail::transport::ofi
