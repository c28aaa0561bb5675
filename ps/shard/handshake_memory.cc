// The memory of a data connection: mapped, allocated, pinned, and checked by a pattern over each way.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/protocol/path_check.h"
#include "ps/shard/handshake.h"

namespace gradrail::ps {

/// RESOURCE_EXHAUSTED: the mapping is under way.
absl::Status Handshake::map_host_memory(ShardPeer& peer) {
  const bool may_map = !peer.is_on_device() && peer.offer.gpu_memory.empty();
  if (!environment_.contexts[peer.context_index]->capabilities().direct_map || !may_map) return absl::OkStatus();
  const auto map = [&](transport::RemoteRegion region, std::string_view name) -> absl::StatusOr<std::byte*> {
    absl::StatusOr<std::byte*> mapped = peer.connection->map(region);
    if (mapped.ok() || absl::IsResourceExhausted(mapped.status())) return mapped;
    return absl::Status(mapped.status().code(),
                        fmt::format("{} cannot be mapped: {}", name, message_of(mapped.status())));
  };
  // The worker unpacks answers in another format.
  if (partition_.return_format() == ReturnFormat::fp32) {
    GRADRAIL_ASSIGN_OR_RETURN(std::byte* const parameters, map(peer.offer.parameters, "parameters"));
    peer.parameters_mapped = reinterpret_cast<float*>(parameters);
  }
  if (!peer.offer.has_gradients) return absl::OkStatus();
  GRADRAIL_ASSIGN_OR_RETURN(std::byte* const gradients, map(peer.offer.gradients, "gradients"));
  peer.gradients_mapped = reinterpret_cast<const float*>(gradients);
  return absl::OkStatus();
}

void Handshake::map_device_memory(ShardPeer& peer) {
  const std::string key = std::exchange(peer.offer.device_key, "");  // one attempt only
  if (partition_.device() == nullptr) {
    peer.device_refused = "the parameters of this shard lie in host memory (see --ps_device)";
    return;
  }
  absl::StatusOr<DeviceVariables> mapped =
      partition_.device()->map_variables(key, partition_.map().elements(), partition_.push_format());
  if (!mapped.ok()) {
    peer.device_refused = message_of(mapped.status());
    return;
  }
  peer.device_refused = check_device_memory(*mapped, peer.offer.check_seed);
  if (!peer.device_refused.empty()) return;
  peer.device = *std::move(mapped);
  // Packed answers use host memory: the worker unpacks them there.
  if (partition_.return_format() == ReturnFormat::fp32) peer.parameters_mapped = peer.device.parameters;
  peer.gradients_mapped = peer.device.gradients;
}

absl::Status Handshake::allocate_slots(ShardPeer& peer) {
  transport::Context& context = *environment_.contexts[peer.context_index];
  // Each has at least kCheckBytes: the pattern crosses the registrations that the exchange uses.
  const uint32_t bucket_count = partition_.bucket_count();
  const size_t slot_bytes = partition_.places().region_bytes();
  GRADRAIL_ASSIGN_OR_RETURN(
      transport::RegisteredMemory slots,
      transport::make_registered(environment_.registered, context, "gradrail-slots", std::max(slot_bytes, kCheckBytes),
                                 transport::Access::remote_write, environment_.options.place_memory));
  GRADRAIL_ASSIGN_OR_RETURN(transport::RegisteredMemory returns,
                            transport::make_registered(environment_.registered, context, "gradrail-returns",
                                                       std::max(bucket_count * sizeof(ReturnHeader), kCheckBytes),
                                                       transport::Access::local, environment_.options.place_memory));
  peer.slots = std::move(slots);
  peer.returns = std::move(returns);
  return absl::OkStatus();
}

absl::Status Handshake::allocate_gpu_slots(ShardPeer& peer) {
  const bool is_mapped = peer.is_on_device() || peer.gradients_mapped != nullptr;
  // Mapped gradients need no payload: the store reads them where the worker wrote them.
  if (parameters_.gpu(peer.context_index) == nullptr || is_mapped || peer.offer.host_slots) return absl::OkStatus();
  GRADRAIL_ASSIGN_OR_RETURN(DeviceSlots slots, partition_.device()->allocate_slots(
                                                   parameters_.gpu_transfer(peer.context_index),
                                                   std::max<size_t>(partition_.places().region_bytes(), kCheckBytes)));
  GRADRAIL_ASSIGN_OR_RETURN(std::unique_ptr<transport::MemoryRegion> region,
                            transport::register_on(environment_.registered, *environment_.contexts[peer.context_index],
                                                   slots.memory, transport::Access::remote_write));
  peer.payload = {std::move(slots), std::move(region)};
  return absl::OkStatus();
}

absl::Status Handshake::probe_mapping(const ShardPeer& peer) {
  const ElementRange range = partition_.range();
  if (range.count == 0 || peer.is_on_device()) return absl::OkStatus();  // map_variables() checks the size
  // map() reports neither size nor rights, and a store behind the end of a region ends this process. The transport
  // checks a put and a get of our range's last element.
  const size_t bytes = sizeof(float);
  const uint64_t last_element = range.first + range.count - 1;
  const size_t last = last_element * bytes;
  if (peer.parameters_mapped != nullptr) {
    // The put writes what is there: a chief that has joined again offers these parameters.
    const transport::LocalSlice element = {peer.returns.region.get(), 0, bytes};
    GRADRAIL_RETURN_IF_ERROR(peer.connection->get(element, {peer.offer.parameters, last}, 0));
    // The copy writes the bytes of the get, which may still be under way.
    std::memcpy(peer.returns.memory.data(), &peer.parameters_mapped[last_element], bytes);
    GRADRAIL_RETURN_IF_ERROR(peer.connection->put(element, {peer.offer.parameters, last}, {}));
  }
  if (peer.gradients_mapped != nullptr) {
    GRADRAIL_RETURN_IF_ERROR(
        peer.connection->get({peer.returns.region.get(), 0, bytes}, {peer.offer.gradients, last}, 0));
    const PushFormat format = partition_.push_format();
    if (format == PushFormat::fp32) return absl::OkStatus();
    GRADRAIL_RETURN_IF_ERROR(peer.connection->get(
        {peer.returns.region.get(), 0, 1},
        {peer.offer.gradients, gradient_at(partition_.map().elements(), last_element, format)}, 0));
  }
  return absl::OkStatus();
}

void Handshake::pin(ShardPeer& peer) {
  StoreDevice* const memory = partition_.device();
  if (memory == nullptr) return;
  const ElementRange range = partition_.range();
  GRADRAIL_CHECK(peer.pinned.empty() && peer.slots.region != nullptr);
  // A mapping holds the worker's whole model; the store reads and writes this shard's part of it.
  MemorySpan gradients = peer.slots.memory.span();
  if (peer.gradients_mapped != nullptr) {
    const PushFormat push = partition_.push_format();
    const std::byte* const first = peer.mapped_gradient(partition_.map().elements(), range.first, push);
    gradients = {.data = const_cast<std::byte*>(first), .bytes = range.count * place_bytes(push)};
  }
  peer.pinned.push_back(memory->pin(gradients));
  if (peer.parameters_mapped != nullptr) {
    peer.pinned.push_back(memory->pin({.data = reinterpret_cast<std::byte*>(peer.mapped_parameter(range.first)),
                                       .bytes = range.count * sizeof(float)}));
  }
}

/// Compares the worker's pattern in its mapped GPU memory, and leaves the shard's pattern there. Returns "" or the
/// error.
std::string Handshake::check_device_memory(const DeviceVariables& mapped, uint64_t seed) {
  StoreDevice& memory = *partition_.device();
  std::vector<std::byte> pattern(kCheckBytes);
  absl::Status done = memory.read(mapped.check, absl::MakeSpan(pattern));
  if (!done.ok()) return std::string(message_of(done));
  if (std::string wrong = compare_check(pattern, seed); !wrong.empty()) return wrong;
  fill_check(absl::MakeSpan(pattern), check_answer_seed(seed));
  done = memory.write(mapped.check + kCheckBytes, pattern);
  return done.ok() ? "" : std::string(message_of(done));
}

/// Compares the pattern in the memory where gradients will arrive. Returns "" or the difference.
std::string Handshake::check_arrived_pattern(ShardPeer& peer) {
  const uint64_t seed = check_seed_of_lane(peer.offer.check_seed, peer.check_lane);
  if (!peer.uses_gpu()) {
    GRADRAIL_CHECK(peer.slots.memory.bytes() >= kCheckBytes);
    const absl::Span<std::byte> arrived(peer.slots.memory.data(), kCheckBytes);
    std::string wrong = compare_check(arrived, seed);
    // The pattern covers slot headers: a notice without a header must not read its bytes.
    std::fill(arrived.begin(), arrived.end(), std::byte{});
    return wrong;
  }
  StoreDevice& memory = *partition_.device();
  std::vector<std::byte> arrived(kCheckBytes);
  absl::Status read = memory.flush_nic_writes();
  if (read.ok()) read = memory.read(peer.payload.slots.memory.data, absl::MakeSpan(arrived));
  if (!read.ok()) return std::string(message_of(read));
  const std::string wrong = compare_check(arrived, seed);
  return wrong.empty() ? "" : fmt::format("in the shard's GPU memory: {}", wrong);
}

/// Source of the pattern: the memory from which answers leave. All peers share one pattern in GPU memory: there is
/// space for one, and puts to several peers may be under way.
transport::LocalSlice Handshake::pattern_source(const ShardPeer& peer) const {
  if (!peer.uses_gpu()) return {peer.returns.region.get(), 0, kCheckBytes};
  return {parameters_.gpu(peer.context_index), partition_.device()->check_offset(), kCheckBytes};
}

}  // namespace gradrail::ps
