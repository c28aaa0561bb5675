#pragma once

#include <ucp/api/ucp.h>

#include <bitset>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "transport/connection.h"
#include "transport/ucx/memory_region.h"
#include "transport/ucx/operation.h"
#include "transport/ucx/wire.h"

namespace gradrail::transport::ucx {

class UcxConnection;
class UcxContext;

/// The sending side of one connection: operations that UCX has not finished, and what waits for the handshake.
/// Errors  RESOURCE_EXHAUSTED: no operation is free. Any other error of UCX ends the connection.
class Sender {
 public:
  Sender(UcxContext& context, UcxConnection& connection);

  /// The connection is open: posts the hello, then what waited.
  void start();
  absl::Status put(const LocalSlice& source, const RegionKey& target, uint64_t offset, const PutOptions& options);
  absl::Status send(absl::Span<const std::byte> message);
  /// Requests the bytes of a get. The header has everything but the peer.
  absl::Status request(Header header);
  /// Answers the peer's get. Answers to a peer that was ready first wait for start().
  ucs_status_t answer(const Header& request);

  bool full() const { return operations_.empty(); }
  /// The hello has left: the path works in this direction.
  bool hello_sent() const { return hello_sent_; }
  /// UCX holds no operation.
  bool idle() const { return operations_.all_back() && answers_.all_back(); }
  /// Whether UCX reads from this region for the peer.
  bool reads_from(const Region& region) const;
  /// Drops what waits for start().
  void drop_waiting();

  static absl::Status full_error();

 private:
  struct EarlyMessage {
    Operation* operation = nullptr;
    size_t bytes = 0;
  };

  absl::Status post(Operation* operation, Header header, const std::byte* data, size_t bytes, const Region* region,
                    bool by_rendezvous = false);
  absl::Status post_message(Operation* operation, size_t bytes);
  void post_hello();
  void post_early_messages();
  static void on_sent(void* request, ucs_status_t status, void* operation);
  void sent(Operation* operation, ucs_status_t status);
  void put_sent(uint32_t sequence);
  bool put_window_full() const { return next_put_ - oldest_put_ == kPutWindow; }
  void give_back(Operation* operation);
  void fail(std::string_view doing, const absl::Status& why);

  UcxContext& context_;
  UcxConnection& connection_;
  OperationPool operations_;
  OperationPool answers_;
  uint32_t next_put_ = 0;
  uint32_t oldest_put_ = 0;  ///< oldest put that UCX has not finished
  std::bitset<kPutWindow> put_done_;
  uint32_t next_message_ = 0;
  bool hello_sent_ = false;
  std::vector<EarlyMessage> early_messages_;
  std::vector<Header> early_requests_;  ///< gets of a peer that was ready before us
};

}  // namespace gradrail::transport::ucx
