#include "worker/client/paths/gpu_transfers.h"

#include <algorithm>
#include <map>

#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "ps/protocol/control.pb.h"
#include "worker/client/gpu_variables.h"
#include "worker/client/paths/shard_link.h"

namespace gradrail::worker {
namespace {

/// Parameters in another format than fp32 are unpacked in host memory.
std::string meaning_of(GpuTransfer way, ReturnFormat returns) {
  const bool ipc = way == GpuTransfer::ipc;
  const char* const peer = ipc ? "the parameter server's GPU" : "the network device";
  return returns == ReturnFormat::fp32
             ? fmt::format("{} reads gradients and {} parameters in this GPU's memory", peer, ipc ? "stores" : "writes")
             : fmt::format("{} reads gradients in this GPU's memory; parameters in {} pass through host memory", peer,
                           return_format_name(returns));
}

std::string reasons_of(const ShardLink& link, const std::vector<GpuTransfer>& wanted) {
  std::vector<std::string> reasons;
  const bool ipc = std::find(wanted.begin(), wanted.end(), GpuTransfer::ipc) != wanted.end();
  if (ipc && !link.ipc_refused.empty()) reasons.push_back(fmt::format("ipc: {}", link.ipc_refused));
  for (const auto& [way, why] : link.transfers_refused)
    reasons.push_back(fmt::format("{}: {}", gpu_transfer_name(way), why));
  return fmt::format("{}", fmt::join(reasons, "; "));
}

std::string text_of(const ShardLink& link, const ClientOptions& options) {
  const std::vector<GpuTransfer>& wanted = options.placement.gpu_transfers;
  const GpuTransfer way = link.path->way();
  const std::string reasons = reasons_of(link, wanted);
  if (way == GpuTransfer::staged) {
    const std::string why = wanted.empty() ? "" : fmt::format(" ({})", reasons);
    return fmt::format("staged through pinned host memory{}", why);
  }
  return fmt::format("{} ({}{}{})", gpu_transfer_name(way), meaning_of(way, options.compression.returns),
                     reasons.empty() ? "" : "; ", reasons);
}

}  // namespace

std::vector<GpuTransfer> ways_to_try(const ClientOptions& options, const ShardLink& link) {
  if (options.placement.device.parameters == nullptr) return {GpuTransfer::staged};
  std::vector<GpuTransfer> ways;
  for (const GpuTransfer way : options.placement.gpu_transfers) {
    if (way != GpuTransfer::ipc || link.ipc_refused.empty()) ways.push_back(way);
  }
  // Last: staging works over every transport, so that no later way would be tried.
  if (!options.placement.require_device) ways.push_back(GpuTransfer::staged);
  return ways;
}

std::string why_not_ipc(const GpuVariables* variables, const ps::proto::DescribeReply& reply, bool same_host,
                        const std::string& server) {
  if (!same_host) return fmt::format("{} is on another host", server);
  if (!reply.on_gpu()) return fmt::format("{} keeps its parameters in host memory (--ps_device)", server);
  return variables == nullptr ? "" : std::string(message_of(variables->ipc_key().status()));
}

absl::Status no_way_left(const ClientOptions& options, const ShardLink& link) {
  return absl::FailedPreconditionError(fmt::format("gradients cannot leave the GPU as --gpu-direct requires: {}",
                                                   reasons_of(link, options.placement.gpu_transfers)));
}

std::string describe_ways(const ClientOptions& options, const std::vector<std::unique_ptr<ShardLink>>& links) {
  if (options.placement.device.parameters == nullptr) return "";
  std::map<GpuTransfer, std::vector<const ShardLink*>> by_way;
  for (const auto& link : links) {
    if (link->path != nullptr) by_way[link->path->way()].push_back(link.get());
  }
  std::vector<std::string> texts;
  for (const auto& [way, on_way] : by_way) {
    std::vector<uint32_t> shards;
    for (const ShardLink* link : on_way) shards.push_back(link->shard_index);
    const std::string which = by_way.size() > 1 ? fmt::format("shards {}: ", fmt::join(shards, ", ")) : "";
    texts.push_back(which + text_of(*on_way.front(), options));
  }
  return fmt::format("{}", fmt::join(texts, "; "));
}

}  // namespace gradrail::worker

namespace gradrail {

const char* gpu_transfer_name(GpuTransfer way) {
  switch (way) {
    case GpuTransfer::ipc:
      return "ipc";
    case GpuTransfer::dma_buf:
      return name_of(NicGpuTransfer::dma_buf);
    case GpuTransfer::peer_memory:
      return name_of(NicGpuTransfer::peer_memory);
    case GpuTransfer::staged:
      break;
  }
  return "staged";
}

}  // namespace gradrail
