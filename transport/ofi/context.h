#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/check.h"
#include "base/file_descriptor.h"
#include "base/rate_limited_log.h"
#include "gradrail/clock.h"
#include "transport/common/completion_queue.h"
#include "transport/common/side_channel.h"
#include "transport/context.h"
#include "transport/ofi/domain.h"
#include "transport/ofi/handle.h"
#include "transport/ofi/link.h"
#include "transport/ofi/memory_region.h"
#include "transport/ofi/provider.h"
#include "transport/registry.h"

namespace gradrail::transport::ofi {

class OfiConnection;

/// A message in a receive buffer of a connection. The buffer receives again when the owner has read the message.
struct MessageSlot {
  OfiConnection* connection = nullptr;  ///< null: no message
  uint32_t slot = 0;
  explicit operator bool() const { return connection != nullptr; }
};

absl::StatusOr<std::unique_ptr<Context>> open(const OpenOptions& options);

/// The transport over libfabric: one endpoint for each connection, and a tcp context for the side channels
/// (connection.h).
/// Threads     One owner thread, which alone makes progress.
/// Invariants  1. Every connection is in connections_ until close(); the next poll removes a lost pending one.
///             2. A completion of a connection is in ready_ only while the connection is not closed.
class OfiContext final : public Context {
 public:
  static absl::StatusOr<std::unique_ptr<Context>> create(const OpenOptions& options);
  ~OfiContext() override;

  std::string_view name() const override { return "ofi"; }
  Capabilities capabilities() const override;
  absl::StatusOr<std::unique_ptr<MemoryRegion>> register_memory(MemorySpan memory, Access access) override;
  absl::StatusOr<std::string> listen(const std::string& address) override;
  absl::StatusOr<Connection*> connect(const std::string& address, TimePoint deadline) override;
  void close(Connection* connection) override;
  size_t poll(absl::Span<Completion> out) override;
  int wait_fd() const override { return epoll_.get(); }
  bool arm() override;

  // Connections use these functions.
  const Provider& provider() const { return *provider_; }
  Duration path_timeout() const { return path_timeout_; }
  RegionTable& regions() { return regions_; }
  fid_fabric* fabric() { return fabric_.get(); }
  Domain& default_domain() { return *default_domain_; }
  common::SideChannels& side_channels() { return *side_channels_; }
  absl::StatusOr<std::unique_ptr<Domain>> open_domain();
  /// `slot` holds completion.message.
  void report(Completion completion, MessageSlot slot = {}) {
    GRADRAIL_CHECK(completion.connection != nullptr);
    ready_.push(std::move(completion), slot);
  }
  size_t room() const { return ready_.size() < room_ ? room_ - ready_.size() : 0; }
  bool has_ready() const { return !ready_.empty(); }
  /// Closes the link, now or where the provider needs it a little later.
  /// shared_ptr: a connection that was lost still delivers messages of the link, and may end before it is closed.
  void defer_close(std::shared_ptr<Link> link);
  void watch(int fd);
  void unwatch(int fd);
  /// The log for lines about peers that have proven nothing to the owner.
  RateLimitedLog& rate_limited_log() { return rate_limited_log_; }

 private:
  struct DeferredClose {
    std::shared_ptr<Link> link;  ///< shared_ptr: as defer_close()
    TimePoint until{};
  };

  OfiContext() = default;
  absl::Status check_peer_to_peer();
  /// Waits a limited time for the handshake; the connection may still be pending then.
  absl::StatusOr<Connection*> finish_connect(OfiConnection* connection, TimePoint deadline);

  // context_progress.cc
  void progress();
  void poll_side_channels();
  void drop_lost_pending();
  void reap_deferred_closes(TimePoint now);
  bool queues_are_dry();
  void set_timer();
  Duration time_to_look() const;

  // Set once.
  Duration path_timeout_{};
  std::unique_ptr<Provider> provider_;  ///< domains keep its address
  Handle<fid_fabric> fabric_;
  std::unique_ptr<Domain> default_domain_;  ///< domain of all regions, and of all connections without a separate domain
  FileDescriptor epoll_;
  FileDescriptor timer_;

  // Owner thread.
  RateLimitedLog rate_limited_log_;
  std::unique_ptr<common::SideChannels> side_channels_;
  RegionTable regions_;
  std::vector<std::unique_ptr<OfiConnection>> connections_;
  std::deque<DeferredClose> deferred_closes_;
  common::CompletionQueue<MessageSlot> ready_;
  size_t room_ = 0;
  std::vector<fid*> queues_;  ///< queues for fi_trywait
  uint32_t turn_ = 0;
  bool armed_ = false;
  bool timer_set_ = false;
  TimePoint busy_until_{};  ///< set where a provider has no wait objects
};

}  // namespace gradrail::transport::ofi
