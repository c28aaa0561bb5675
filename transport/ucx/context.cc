// Opening and closing. Handshakes are in context_handshake.cc, the poll loop in context_progress.cc.
#include "transport/ucx/context.h"

#include <sys/epoll.h>

#include <cerrno>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/random_bits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "transport/common/native_error.h"
#include "transport/tcp/context.h"
#include "transport/tcp/native_error.h"
#include "transport/ucx/native_error.h"

namespace gradrail::transport::ucx {
namespace {

/// Number of buffers for reuse: what one poll of a usual caller can deliver.
constexpr size_t kSpareBuffers = 256;

}  // namespace

absl::StatusOr<std::unique_ptr<Context>> open(const OpenOptions& options) {
  GRADRAIL_ASSIGN_OR_RETURN(std::unique_ptr<Context> side_channels, tcp::open(options));
  common::environment_text("UCX_");  // precedes the additions of tame_library()
  absl::StatusOr<Worker> opened = Worker::open(options);
  if (!opened.ok()) return common::with_environment(opened.status(), "UCX_");
  Worker worker = *std::move(opened);
  GRADRAIL_ASSIGN_OR_RETURN(std::string address, worker.address());
  FileDescriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return tcp::native_error("open epoll", errno);
  auto context =
      std::make_unique<UcxContext>(std::move(worker), std::move(side_channels), std::move(epoll), std::move(address));
  GRADRAIL_RETURN_IF_ERROR(context->start());
  return context;
}

UcxContext::UcxContext(Worker worker, std::unique_ptr<Context> side_channels, FileDescriptor epoll,
                       std::string worker_address)
    : side_channels_(std::move(side_channels)),
      worker_(std::move(worker)),
      epoll_(std::move(epoll)),
      worker_address_(std::move(worker_address)),
      id_(random_bits()),
      regions_(worker_, id_, [this](const Region& region) { region_ends(region); }),
      buffers_(kMaxMessageBytes, kSpareBuffers) {}

UcxContext::~UcxContext() {
  GRADRAIL_CHECK(regions_.empty());  // a region must not outlive its Context
  for (const auto& connection : connections_) {
    if (connection == nullptr) continue;
    finish(connection.get());
    remove(connection.get());
  }
  if (!abandoned_.empty()) leak_abandoned();
}

void UcxContext::leak_abandoned() {
  constexpr Duration kTimeout = std::chrono::seconds(1);
  const TimePoint deadline = Clock::now() + kTimeout;
  while (!abandoned_.empty() && Clock::now() < deadline) progress();
  if (abandoned_.empty()) return;
  log_warning("ucx: {} endpoints without a complete wire-up stay until the process ends", abandoned_.size());
  // The end of the worker would close these endpoints, and UCX 1.13 would abort (UcxConnection::abandoned). Its
  // callbacks may still use the connections.
  worker_.leak();
  for (auto& each : abandoned_) static_cast<void>(each.release());
}

absl::Status UcxContext::start() {
  for (const int fd : {side_channels_.wait_fd(), worker_.event_fd()}) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return tcp::native_error("watch a descriptor", errno);
  }
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kActiveMessage;
  handler.cb = on_message;
  handler.arg = this;
  const ucs_status_t status = ucp_worker_set_am_recv_handler(worker_.get(), &handler);
  if (status != UCS_OK) return native_error("receive messages", status);
  return absl::OkStatus();
}

Capabilities UcxContext::capabilities() const {
  return {.one_sided = false,  // the peer's owner thread must poll for a put to land
          .gpu = worker_.gpu(),
          .max_message_bytes = kMaxMessageBytes};
}

absl::StatusOr<std::unique_ptr<MemoryRegion>> UcxContext::register_memory(MemorySpan memory, Access access) {
  return regions_.add(memory, access);
}

absl::StatusOr<std::string> UcxContext::listen(const std::string& address) { return side_channels_.listen(address); }

void UcxContext::close(Connection* connection) {
  auto* const peer = static_cast<UcxConnection*>(connection);
  GRADRAIL_CHECK(peer->number() < connections_.size() && connections_[peer->number()].get() == peer);
  finish(peer);
  remove(peer);
}

void UcxContext::remove(UcxConnection* connection) {
  // The call follows finish(), which runs UCX and may have added completions.
  ready_.forget(connection);
  std::erase(failing_, connection);
  std::erase(ending_, connection);
  std::erase(to_confirm_alive_, connection);
  std::unique_ptr<UcxConnection>& place = connections_[connection->number()];
  GRADRAIL_CHECK(place.get() == connection);  // invariant 1
  // Resources that UCX still holds must stay.
  if (!connection->released()) abandoned_.push_back(std::move(place));
  place.reset();
}

}  // namespace gradrail::transport::ucx
