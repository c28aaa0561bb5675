#pragma once

#include <ucp/api/ucp.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "transport/connection.h"
#include "transport/ucx/memory_region.h"
#include "transport/ucx/wire.h"

namespace gradrail::transport::ucx {

class Sender;
class UcxConnection;
class UcxContext;

/// The gets of one connection that wait for their bytes.
class PendingGets {
 public:
  PendingGets(UcxContext& context, UcxConnection& connection) : context_(context), connection_(connection) {}

  /// Errors  RESOURCE_EXHAUSTED: too many are pending, or the sender is full.
  absl::Status start(const LocalSlice& target, const RegionKey& source, uint64_t offset, uint64_t tag, Sender& sender);
  ucs_status_t data_arrived(const Header& header, void* data, size_t bytes, bool rendezvous);
  /// Reports the gets that wait for it: the peer was connected after the last bytes arrived.
  void confirm();
  /// No receive of UCX is under way.
  bool idle() const { return receiving_ == 0; }

 private:
  struct Get {
    PendingGets* gets = nullptr;
    std::byte* target = nullptr;
    uint64_t bytes = 0;
    uint64_t tag = 0;
    const Region* region = nullptr;  ///< null: the slot is free
    uint64_t number = 0;
    bool answered = false;  ///< a second answer would write behind the end of the get
    bool moved = false;     ///< all bytes are here; the check of the side channel is pending
  };

  void moved(Get& get);
  void done(Get& get);
  static void on_moved(void* request, ucs_status_t status, size_t bytes, void* get);

  UcxContext& context_;
  UcxConnection& connection_;
  std::array<Get, kMaxGets> gets_;
  uint64_t next_ = 0;
  size_t receiving_ = 0;  ///< receives that UCX has not finished
};

}  // namespace gradrail::transport::ucx
