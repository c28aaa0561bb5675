#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "bench/put/end.h"
#include "bench/put/link.h"

namespace gradrail::bench {

struct PutTransport {
  std::string name = "tcp";
  bool rdma_only = false;
  std::string ofi_provider;
  std::string bind_host;
};

/// Opens the transport and connects its two ends over `link`; `bytes` is the size of a slot.
absl::StatusOr<std::unique_ptr<PutEnd>> open_transport_end(const PutTransport& transport, PairLink& link, size_t bytes);

}  // namespace gradrail::bench
