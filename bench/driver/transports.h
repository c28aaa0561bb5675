#pragma once

#include <string>
#include <vector>

#include "bench/driver/options.h"
#include "nlohmann/json_fwd.hpp"
#include "transport/capabilities.h"

namespace gradrail::bench {

/// A transport that a run on this host can try.
struct TransportChoice {
  std::string name;                   ///< name in the registry
  bool rdma_only = false;             ///< use of an RDMA device only
  std::string ofi_provider;           ///< "": libfabric's best
  bool encrypted = false;             ///< `--encrypt-data`; only tcp
  std::string unusable;               ///< reason why it cannot be opened; "": it can
  transport::GpuTransferSupport gpu;  ///< set if it can be opened

  /// The name of its rows.
  std::string title() const { return encrypted ? name + " encrypted" : name; }
};

/// Returns the transports that the options name, or all, each tried by opening it in a separate process. Some libraries
/// do not survive a fork once they are open. ucx and ofi run over sockets, too: with_sockets decides whether that
/// counts as usable. With encrypt_data, tcp with encryption follows tcp.
/// Errors  NOT_FOUND: no such transport. INVALID_ARGUMENT: --encrypt-data without tcp.
absl::StatusOr<std::vector<TransportChoice>> choose_transports(const Options& options, bool with_sockets,
                                                               bool encrypt_data = false);

/// The part of it that runs in that process (jobs.h).
nlohmann::json open_transport(const nlohmann::json& job);

}  // namespace gradrail::bench
