// Variables at home in GPU memory: which ways lead out of it and into it, over which path.
#include <algorithm>
#include <map>

#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "worker/client_impl.h"

namespace gradrail::worker {
namespace {

const char* meaning_of(GpuWay way) {
  switch (way) {
    case GpuWay::ipc:
      return "the parameter server's GPU reads gradients and stores parameters in this GPU's memory";
    case GpuWay::dma_buf:
    case GpuWay::peer_memory:
      return "the network device reads gradients and writes parameters in this GPU's memory";
    case GpuWay::staged:
      break;
  }
  return "";
}

}  // namespace

const char* name_of(GpuWay way) {
  switch (way) {
    case GpuWay::ipc:
      return "ipc";
    case GpuWay::dma_buf:
      return gradrail::name_of(GpuDirect::dma_buf);
    case GpuWay::peer_memory:
      return gradrail::name_of(GpuDirect::peer_memory);
    case GpuWay::staged:
      break;
  }
  return "staged";
}

absl::Status Client::Impl::open_gpu() {
  if (options_.device.device == nullptr) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<GpuVariables>> gpu =
      GpuVariables::create(options_.device, tensor_first_.back(), parameters_.span(), gradients_.span());
  if (!gpu.ok()) return gpu.status();
  gpu_ = *std::move(gpu);
  return absl::OkStatus();
}

/// "" when another process may map the memory, as far as can be told before it tries.
std::string Client::Impl::why_not_ipc(const ps::proto::DescribeReply& reply, bool same_host,
                                      const std::string& ps) const {
  if (!same_host) return fmt::format("{} is on another host", ps);
  if (!reply.on_gpu()) return fmt::format("{} keeps its parameters in host memory (--ps_device)", ps);
  return options_.device.key.empty() ? options_.device.why_no_key : "";
}

std::vector<GpuWay> Client::Impl::ways(const ShardLink& link) const {
  if (gpu_ == nullptr) return {GpuWay::staged};
  std::vector<GpuWay> ways;
  for (const GpuWay way : options_.gpu_ways) {
    if (way != GpuWay::ipc || link.ipc_refused.empty()) ways.push_back(way);
  }
  if (!options_.require_device) ways.push_back(GpuWay::staged);
  return ways;
}

absl::Status Client::Impl::reach_gpu(OpenContext& open, GpuWay way) {
  if (way != GpuWay::dma_buf && way != GpuWay::peer_memory) return absl::OkStatus();
  const GpuDirect direct = way == GpuWay::dma_buf ? GpuDirect::dma_buf : GpuDirect::peer_memory;
  std::unique_ptr<transport::MemoryRegion>& region = open.gpu[static_cast<size_t>(direct)];
  if (region != nullptr) return absl::OkStatus();
  const std::string why_not = open.context->capabilities().gpu.why_not(direct);
  if (!why_not.empty()) return absl::FailedPreconditionError(fmt::format("{} {}", open.transport, why_not));
  const absl::StatusOr<MemorySpan> block = gpu_->block(direct);
  if (!block.ok()) return block.status();
  absl::StatusOr<std::unique_ptr<transport::MemoryRegion>> registered =
      transport::register_on(stats_.registered, *open.context, *block, transport::Access::remote_write);
  if (!registered.ok()) return registered.status();
  region = *std::move(registered);
  return absl::OkStatus();
}

namespace {

std::string reasons_of(const ShardLink& link, const std::vector<GpuWay>& wanted) {
  std::vector<std::string> reasons;
  const bool ipc = std::find(wanted.begin(), wanted.end(), GpuWay::ipc) != wanted.end();
  if (ipc && !link.ipc_refused.empty()) reasons.push_back(fmt::format("ipc: {}", link.ipc_refused));
  for (const auto& [way, why] : link.ways_refused) reasons.push_back(fmt::format("{}: {}", name_of(way), why));
  return fmt::format("{}", fmt::join(reasons, "; "));
}

std::string text_of(const ShardLink& link, const std::vector<GpuWay>& wanted) {
  const GpuWay way = link.path->way();
  const std::string reasons = reasons_of(link, wanted);
  if (way == GpuWay::staged) {
    const std::string why = wanted.empty() ? "" : fmt::format(" ({})", reasons);
    return fmt::format("staged through pinned host memory{}", why);
  }
  return fmt::format("{} ({}{}{})", name_of(way), meaning_of(way), reasons.empty() ? "" : "; ", reasons);
}

}  // namespace

absl::Status Client::Impl::no_way(const ShardLink& link) const {
  return absl::FailedPreconditionError(
      fmt::format("gradients cannot leave the GPU as --gpu-direct says: {}", reasons_of(link, options_.gpu_ways)));
}

/// One text for each way, with the reasons of the first shard that it leads to: they are alike.
std::string Client::Impl::gpu_text() const {
  std::map<GpuWay, std::vector<const ShardLink*>> by_way;
  for (const auto& link : links_) {
    if (gpu_ != nullptr && link->path != nullptr) by_way[link->path->way()].push_back(link.get());
  }
  std::vector<std::string> texts;
  for (const auto& [way, links] : by_way) {
    std::vector<uint32_t> shards;
    for (const ShardLink* link : links) shards.push_back(link->shard_index);
    const std::string which = by_way.size() > 1 ? fmt::format("shards {}: ", fmt::join(shards, ", ")) : "";
    texts.push_back(which + text_of(*links.front(), options_.gpu_ways));
  }
  return fmt::format("{}", fmt::join(texts, "; "));
}

absl::Status Client::Impl::fetch() { return gpu_ == nullptr ? absl::OkStatus() : gpu_->fetch_parameters(); }

}  // namespace gradrail::worker
