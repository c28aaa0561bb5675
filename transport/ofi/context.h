#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "transport/context.h"
#include "transport/ofi/domain.h"
#include "transport/ofi/handle.h"
#include "transport/ofi/link.h"
#include "transport/ofi/memory_region.h"
#include "transport/ofi/provider.h"
#include "transport/registry.h"
#include "transport/tcp/socket.h"

namespace gradrail::transport::ofi {

class OfiConnection;

absl::StatusOr<std::unique_ptr<Context>> open(const OpenOptions& options);

/// The transport over libfabric: one endpoint a connection, a tcp context beside for the side channels (connection.h).
/// Threads     One owner thread, which alone makes progress.
/// Invariants  1. Every connection is in connections_ until close(); a lost pending one goes at the next poll.
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

  // For connections.
  static constexpr uint32_t kNoSlot = UINT32_MAX;
  const Provider& provider() const { return *provider_; }
  RegionTable& regions() { return regions_; }
  fid_fabric* fabric() { return fabric_.get(); }
  Domain& default_domain() { return *default_domain_; }
  Context& side_channel() { return *side_channel_; }
  absl::StatusOr<std::unique_ptr<Domain>> open_domain();
  /// `slot`: of the message, to be released when the owner has seen it.
  void report(Completion completion, uint32_t slot = kNoSlot);
  size_t room() const { return ready_.size() < room_ ? room_ - ready_.size() : 0; }
  bool has_ready() const { return !ready_.empty(); }
  /// Closes the link, now or where the provider needs it a little later.
  void defer_close(std::shared_ptr<Link> link);
  void watch(int fd);
  void unwatch(int fd);

 private:
  struct Ready {
    Completion completion;
    uint32_t slot = kNoSlot;
  };
  struct DeferredClose {
    std::shared_ptr<Link> link;
    TimePoint until{};
  };
  struct Delivered {
    OfiConnection* connection = nullptr;
    uint32_t slot = 0;
  };

  OfiContext() = default;
  absl::Status check_peer_to_peer();
  absl::StatusOr<Connection*> settle(OfiConnection* connection, TimePoint deadline);

  // context_progress.cc
  void progress();
  bool side_channel_due();
  void poll_side_channels();
  void handle_side_channel(const Completion& completion);
  void drop_lost_pending();
  void reap_deferred_closes(TimePoint now);
  size_t take(absl::Span<Completion> out);
  void release_messages();
  bool queues_are_dry();
  void set_timer();
  Duration time_to_look() const;

  // Set once.
  std::unique_ptr<Provider> provider_;  ///< where it lies is known to domains
  Handle<fid_fabric> fabric_;
  std::unique_ptr<Domain> default_domain_;  ///< of all regions, and of all connections that have no domain of their own
  tcp::Fd epoll_;
  tcp::Fd timer_;

  // Owner thread.
  std::unique_ptr<Context> side_channel_;
  RegionTable regions_;
  std::vector<std::unique_ptr<OfiConnection>> connections_;
  std::deque<DeferredClose> deferred_closes_;
  std::deque<Ready> ready_;
  size_t room_ = 0;
  std::vector<Delivered> delivered_;
  std::vector<fid*> queues_;  ///< for fi_trywait
  uint32_t turn_ = 0;
  bool armed_ = false;
  bool timer_set_ = false;
  TimePoint next_look_{};
  TimePoint busy_until_{};  ///< kept where a provider has no wait objects
};

}  // namespace gradrail::transport::ofi
