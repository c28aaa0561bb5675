#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/memory.h"
#include "ps/control.pb.h"
#include "ps/exchange_layout.h"
#include "ps/shard_map.h"
#include "transport/connection.h"
#include "transport/context.h"
#include "transport/negotiate.h"

namespace gradrail::worker {

/// A worker's data connection to one shard and what an exchange over it needs.
/// Threads  Owner thread of the client.
struct ShardLink {
  uint32_t ps_index = 0;
  uint32_t shard_index = 0;  ///< in the whole
  ps::ElementRange range;
  std::vector<transport::Candidate> candidates;
  std::vector<ps::proto::JoinReply::Endpoint> endpoints;

  size_t context_index = 0;
  transport::Connection* connection = nullptr;
  transport::RemoteRegion slots{};
  bool gradients_mapped = false;
  bool welcome = false;
  std::string refused;

  SharedMemory headers;  ///< [SlotHeader × buckets], source of the headers
  std::unique_ptr<transport::MemoryRegion> headers_region;
  SharedMemory returns;  ///< [ReturnHeader × buckets], written by the shard
  std::unique_ptr<transport::MemoryRegion> returns_region;

  struct Bucket {
    ps::ElementRange range;        ///< in the whole model
    uint32_t tensors = 0;          ///< that overlap it
    uint32_t tensors_missing = 0;  ///< of those, not ready in this step
    bool pushed = false;
    bool payload_posted = false;
    bool outstanding = false;
    uint64_t version = 0;
  };
  std::vector<Bucket> buckets;

  ps::SlotHeader* slot_headers() const { return reinterpret_cast<ps::SlotHeader*>(headers.data()); }
  const ps::ReturnHeader* return_headers() const { return reinterpret_cast<const ps::ReturnHeader*>(returns.data()); }
};

}  // namespace gradrail::worker
