#include "transport/shm/context.h"

namespace gradrail::transport::shm {

absl::StatusOr<std::unique_ptr<Context>> open(const OpenOptions&) { return absl::UnimplementedError("shm"); }

}  // namespace gradrail::transport::shm
