#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "transport/c_plugin/connection.h"
#include "transport/c_plugin/table.h"
#include "transport/context.h"
#include "transport/registry.h"

namespace gradrail::transport::c_plugin {

/// Opens a context of the plug-in, which must outlive it.
/// Errors  Those of the plug-in. INTERNAL: it returned values that break the contract of gradrail/transport.h.
absl::StatusOr<std::unique_ptr<Context>> open(const Table& table, const OpenOptions& options);

/// A context of a plug-in with a table of C functions.
/// Invariants  1. The plug-in is trusted to be no attacker, not to be correct: each result is checked before its use.
///             2. After a completion that breaks the contract poll() does not call the plug-in again. The defect is
///                logged once. Each connection reports peer_lost with the defect as cause.
class PluginContext final : public Context {
 public:
  using Handle = std::unique_ptr<gradrail_transport_context, void (*)(gradrail_transport_context*)>;
  PluginContext(const Table& table, Handle handle, const Capabilities& capabilities, int wait_fd);
  ~PluginContext() override;

  std::string_view name() const override { return table_.name(); }
  Capabilities capabilities() const override { return capabilities_; }
  absl::StatusOr<std::unique_ptr<MemoryRegion>> register_memory(MemorySpan memory, Access access) override;
  absl::StatusOr<std::string> listen(const std::string& address) override;
  absl::StatusOr<Connection*> connect(const std::string& address, TimePoint deadline) override;
  void close(Connection* connection) override;
  size_t poll(absl::Span<Completion> out) override;
  int wait_fd() const override { return wait_fd_; }
  bool arm() override;

 private:
  absl::StatusOr<std::unique_ptr<MemoryRegion>> register_described(const gradrail_transport_memory& described,
                                                                   MemorySpan memory, Access access);
  absl::StatusOr<PluginConnection*> adopt(gradrail_transport_connection* handle, std::string_view call);
  absl::Status convert(const gradrail_transport_completion& from, Completion& to);
  absl::StatusOr<PluginConnection*> find(const gradrail_transport_completion& completion) const;
  absl::Status cause_of_loss(const gradrail_transport_completion& completion) const;
  size_t report_losses(absl::Span<Completion> out);
  void give_up(absl::Status defect);

  // Set once.
  const Table& table_;
  const Handle handle_;
  const Capabilities capabilities_;
  const int wait_fd_;

  // Owner thread.
  std::unordered_map<gradrail_transport_connection*, std::unique_ptr<PluginConnection>> connections_;
  std::vector<gradrail_transport_completion> batch_;  ///< zero between polls
  size_t region_count_ = 0;
  bool listening_ = false;
  absl::Status defect_;                   ///< OK as long as the plug-in keeps the contract
  std::deque<PluginConnection*> losses_;  ///< losses that are not reported yet, after a defect
};

}  // namespace gradrail::transport::c_plugin
