#pragma once

#include <memory>
#include <string>

#include "base/mutex.h"
#include "ps/control/run_agreement.h"

namespace gradrail::ps {

namespace proto {
class ReplicateRequest;
}

/// Last message of the primary, as its backup needs it to take over.
struct PrimaryRecord {
  /// The message is never null. It is shared, because it has no complete type here.
  std::shared_ptr<const proto::ReplicateRequest> message;
  std::string token;           ///< admits the data connections of the primary's shards
  bool has_restarted = false;  ///< another process has replaced it, and its workers may join here
  bool has_no_run = false;     ///< the process of `message` had begun none
};

/// State that decides how the shards are set up. One lock serializes joins, snapshots and the primary's messages,
/// because each of them makes several calls to the shards that belong together.
struct RunSetup {
  explicit RunSetup(ControlContext& context);

  Mutex mutex;  ///< locked before ControlState::mutex
  RunAgreement agreement ABSL_GUARDED_BY(mutex);
  PrimaryRecord primary ABSL_GUARDED_BY(mutex);
};

}  // namespace gradrail::ps
