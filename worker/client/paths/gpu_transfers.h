#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gradrail/client.h"

namespace gradrail::ps::proto {
class DescribeReply;
}

namespace gradrail::worker {

class GpuVariables;
struct ShardLink;

// The ways on which gradients leave a GPU and parameters reach it (GpuTransfer): the choice for one path, and texts for
// people about it.

/// The ways to test with this shard, the best first. Staging alone where variables are in host memory.
std::vector<GpuTransfer> ways_to_try(const ClientOptions& options, const ShardLink& link);

/// "" when the shard's process may map the GPU memory, as far as this is known before the attempt; else the reason.
/// `variables` is null where they are in host memory.
std::string why_not_ipc(const GpuVariables* variables, const ps::proto::DescribeReply& reply, bool same_host,
                        const std::string& server);

/// FAILED_PRECONDITION: every way was refused and staging is forbidden; names each reason.
absl::Status no_way_left(const ClientOptions& options, const ShardLink& link);

/// Text for each way in use, with the reasons of the first shard on it: further shards have similar reasons.
std::string describe_ways(const ClientOptions& options, const std::vector<std::unique_ptr<ShardLink>>& links);

}  // namespace gradrail::worker
