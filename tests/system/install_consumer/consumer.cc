// Reaches into every installed library, so that a missing header, object or third party breaks this build.
#include <cstdio>

#include "base/crc32c.h"
#include "ps/shard_map.h"
#include "transport/registry.h"

int main() {
  absl::StatusOr<gradrail::ps::ShardMap> map = gradrail::ps::ShardMap::cut(1000, 2, 4096);
  if (!map.ok()) return 1;
  for (const gradrail::transport::Transport& transport : gradrail::transport::transports()) {
    std::printf("transport %.*s\n", static_cast<int>(transport.name.size()), transport.name.data());
  }
  return map->shard_count() == 2 && !gradrail::transport::transports().empty() ? 0 : 1;
}
