#include "transport/common/slice.h"

#include "fmt/format.h"

namespace gradrail::transport::common {

absl::Status no_local_region(std::string_view transport) {
  return absl::InvalidArgumentError(fmt::format("{}: a local slice of no region", transport));
}

absl::Status outside_region(std::string_view transport, std::string_view end, uint64_t offset, uint64_t bytes,
                            uint64_t region_bytes) {
  return absl::InvalidArgumentError(
      fmt::format("{}: {} slice outside its region (offset {}, length {}, region {} bytes)", transport, end, offset,
                  bytes, region_bytes));
}

}  // namespace gradrail::transport::common
