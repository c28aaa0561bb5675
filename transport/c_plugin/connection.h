#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "base/check.h"
#include "transport/c_plugin/table.h"
#include "transport/capabilities.h"
#include "transport/connection.h"

namespace gradrail::transport::c_plugin {

/// A connection of the plug-in. It checks each argument before the plug-in receives it, and numbers the operations, so
/// that a completion of an unknown operation is detected.
class PluginConnection final : public Connection {
 public:
  PluginConnection(const Table& table, const Capabilities& capabilities, gradrail_transport_connection* handle)
      : table_(table), capabilities_(capabilities), handle_(handle) {}

  absl::StatusOr<RemoteRegion> import(std::string_view key) override;
  absl::Status put(LocalSlice source, RemoteSlice target, PutOptions options) override;
  absl::Status get(LocalSlice target, RemoteSlice source, uint64_t tag) override;
  absl::Status send(absl::Span<const std::byte> message) override;
  absl::StatusOr<std::byte*> map(RemoteRegion region) override;
  std::string describe() const override;
  std::string path() const override;
  bool uses_rdma() const override;

  // The context uses these functions.
  gradrail_transport_connection* handle() const { return handle_; }
  bool lost() const { return !cause_.ok(); }
  /// Refuses all posts from now on.
  void lose(absl::Status cause) {
    GRADRAIL_CHECK(!lost() && !cause.ok());
    cause_ = std::move(cause);
  }
  /// The tag of a post that is now complete.
  /// Errors  NOT_FOUND: no such operation of this kind is outstanding.
  absl::StatusOr<uint64_t> take_tag(uint64_t operation, bool is_get);

 private:
  struct Outstanding {
    uint64_t tag = 0;
    bool is_get = false;
  };

  absl::Status check_post() const;
  absl::StatusOr<uint64_t> remote(RemoteRegion region) const;
  absl::Status posted(std::string_view call, int code, const gradrail_transport_text& error, uint64_t operation);

  // Set once.
  const Table& table_;
  const Capabilities& capabilities_;
  gradrail_transport_connection* const handle_;

  // Owner thread.
  std::vector<uint64_t> imported_;  ///< the numbers of the plug-in; RemoteRegion n is imported_[n - 1]
  std::unordered_map<uint64_t, Outstanding> outstanding_;  ///< indexed by operation
  uint64_t last_operation_ = 0;                            ///< 0 is none
  absl::Status cause_;                                     ///< cause of the loss; OK until then
};

}  // namespace gradrail::transport::c_plugin
