#include "transport/tcp/context.h"

namespace gradrail::transport::tcp {

absl::StatusOr<std::unique_ptr<Context>> open(const OpenOptions&) { return absl::UnimplementedError("tcp"); }

}  // namespace gradrail::transport::tcp
