#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace gradrail::launch {

/// The job of this process, as the PMIx server of its launcher describes it.
struct PmixJob {
  uint32_t size = 0;
  uint32_t local_size = 0;  ///< processes of the job on this host
  std::string first_host;   ///< name of the host of rank 0
};

/// Opens libpmix.so.2, connects to the PMIx server of this process, and disconnects. Blocks for some milliseconds.
/// Errors   UNAVAILABLE: no library, no server, or the server does not have these facts.
/// Threads  None of the library remain. It handles no signal.
/// Source   PMIx Standard 4.2, https://pmix.github.io/pmix-standard
absl::StatusOr<PmixJob> query_pmix();

}  // namespace gradrail::launch
