#include "transport/loopback/context.h"

namespace gradrail::transport::loopback {

absl::StatusOr<std::unique_ptr<Context>> open(const OpenOptions&) { return absl::UnimplementedError("loopback"); }

}  // namespace gradrail::transport::loopback
