#include "worker/client/paths/shard_path.h"

#include <algorithm>
#include <cassert>

#include "absl/container/inlined_vector.h"
#include "base/check.h"
#include "base/random_bits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/protocol/control.pb.h"
#include "ps/protocol/data_message.h"
#include "ps/protocol/path_check.h"
#include "ps/protocol/return_format.h"
#include "worker/client/paths/shard_link.h"

namespace gradrail::worker {
ShardPath::ShardPath(ShardLink& link, OpenContext& context, const ps::proto::JoinPath& join_path)
    : link_(link), context_(context), join_path_(std::make_unique<ps::proto::JoinPath>(join_path)) {}

absl::StatusOr<std::unique_ptr<ShardPath>> ShardPath::open(ShardLink& link, OpenContext& context,
                                                           const std::string& address,
                                                           const ps::proto::JoinPath& join_path, Prove prove,
                                                           RegistrationBudget& budget, const MemoryBinder& place,
                                                           const GpuOffer& offer, TimePoint deadline) {
  std::unique_ptr<ShardPath> path(new ShardPath(link, context, join_path));
  const size_t header_bytes = std::max(link.bucket_count * sizeof(ps::SlotHeader), ps::kCheckBytes);
  GRADRAIL_ASSIGN_OR_RETURN(transport::RegisteredMemory headers,
                            transport::make_registered(budget, *context.context, "gradrail-headers", header_bytes,
                                                       transport::Access::local, place));
  const size_t return_bytes = ps::return_region_bytes(link.bucket_count, link.range.count, link.returns);
  GRADRAIL_ASSIGN_OR_RETURN(transport::RegisteredMemory returns,
                            transport::make_registered(budget, *context.context, "gradrail-returns", return_bytes,
                                                       transport::Access::remote_write, place));
  GRADRAIL_ASSIGN_OR_RETURN(transport::Connection * connection, context.context->connect(address, deadline));
  path->headers_ = std::move(headers);
  path->returns_ = std::move(returns);
  path->lanes_.resize(link.bucket_count);
  path->connection_ = connection;
  path->connection_->set_user_data(reinterpret_cast<uint64_t>(path.get()));
  path->join_path_->set_returns_key(path->returns_.region->key());
  path->join_path_->set_check_seed(random_bits());
  path->prove_ = std::move(prove);
  path->offer(offer);
  return path;
}

/// Adds to JoinPath the keys of the memory that the shard may read and write.
void ShardPath::offer(const GpuOffer& offer) {
  gpu_ = offer.variables;
  way_ = offer.way;
  if (const transport::MemoryRegion* region = nic_region(); region != nullptr) {
    join_path_->set_parameters_key(region->key());
    join_path_->set_gpu_memory(gpu_transfer_name(way_));
    join_path_->set_check_at(gpu_->check_in_offset());
    return;
  }
  join_path_->set_parameters_key(context_.parameters->key());
  if (context_.context->capabilities().direct_map) join_path_->set_gradients_key(context_.gradients->key());
  if (way_ != GpuTransfer::ipc) return;
  // A shard that maps the memory looks for the pattern before it answers Welcome: the key may name other memory.
  if (gpu_->write_check(join_path_->check_seed()).ok()) join_path_->set_device_key(gpu_->ipc_key().value_or(""));
}

/// The GPU memory's registration with the network device of this path; null: the device does not reach it.
const transport::MemoryRegion* ShardPath::nic_region() const {
  if (way_ == GpuTransfer::dma_buf) return context_.gpu[static_cast<size_t>(NicGpuTransfer::dma_buf)].get();
  if (way_ == GpuTransfer::peer_memory) return context_.gpu[static_cast<size_t>(NicGpuTransfer::peer_memory)].get();
  return nullptr;
}

bool ShardPath::send_bucket(uint32_t bucket_index, MemorySpan gradients, size_t& posted) {
  GRADRAIL_CHECK(phase_ == Phase::active);
  assert(bucket_index < lanes_.size());
  Lane& lane = lanes_[bucket_index];
  const bool is_prepared =
      lane.puts != nullptr && lane.gradients.data == gradients.data && lane.gradients.bytes == gradients.bytes;
  if (!is_prepared) [[unlikely]] {
    if (const absl::Status prepared = prepare(bucket_index, gradients); !prepared.ok())
      return !absl::IsResourceExhausted(prepared);
  }
  const absl::Status taken = lane.puts->post(posted);
  return taken.ok() || !absl::IsResourceExhausted(taken);
}

absl::Status ShardPath::prepare(uint32_t bucket_index, MemorySpan gradients) {
  const size_t offset = bucket_index * sizeof(ps::SlotHeader);
  const transport::Transfer header = {
      .source = {.region = headers_.region.get(), .offset = offset, .bytes = sizeof(ps::SlotHeader)},
      .target = {.region = slots_, .offset = offset}};
  absl::InlinedVector<transport::Transfer, 2> puts;
  if (gradients.bytes > 0) puts.push_back({gradients_source(gradients), slot(bucket_index)});
  // One connection delivers puts in order: the shard reads the header only after the gradients have arrived.
  puts.push_back(header);
  Lane& lane = lanes_[bucket_index];
  GRADRAIL_ASSIGN_OR_RETURN(lane.puts, connection_->prepare(puts, bucket_index));
  lane.gradients = gradients;
  return absl::OkStatus();
}

/// The source of gradients: the host's memory, or the same place of the GPU's where the network device reads it.
transport::LocalSlice ShardPath::gradients_source(MemorySpan gradients) const {
  const auto offset = static_cast<size_t>(gradients.data - context_.gradients->span().data);
  const transport::MemoryRegion* region = nic_region();
  if (region != nullptr) return {region, gpu_->gradients_at() + offset, gradients.bytes};
  return {context_.gradients.get(), offset, gradients.bytes};
}

ShardPath::~ShardPath() {
  // The connection closes before the memory that the shard may still write is unregistered: members are destroyed after
  // this body.
  if (connection_ != nullptr) context_.context->close(connection_);
}

bool ShardPath::advance() {
  if (!to_post_) return false;
  GRADRAIL_CHECK(phase_ != Phase::failed && connection_ != nullptr);
  ps::proto::ToShard message;
  switch (phase_) {
    case Phase::handshake:
      *message.mutable_join_path() = *join_path_;
      note_sent(ps::send_message(*connection_, message), "JoinPath");
      break;
    case Phase::checking:
      note_sent(connection_->put(check_source(), {payload_on_gpu_ ? payload_ : slots_, 0},
                                 {.immediate = ps::kCheckImmediate, .lane = check_lane_}),
                "the checked transfer");
      break;
    case Phase::activating:
      message.mutable_ready();
      note_sent(ps::send_message(*connection_, message), "Ready");
      break;
    default:
      to_post_ = false;
  }
  return to_post_ && phase_ != Phase::failed;
}

void ShardPath::note_sent(const absl::Status& taken, std::string_view what) {
  if (absl::IsResourceExhausted(taken)) return;  // invariant 2: advance() repeats it
  to_post_ = false;
  if (!taken.ok()) fail(fmt::format("{}: {}", what, message_of(taken)));
}

void ShardPath::activate() {
  GRADRAIL_CHECK(phase_ == Phase::ready);
  phase_ = Phase::activating;
  to_post_ = true;
}

void ShardPath::on_message(absl::Span<const std::byte> bytes) {
  ps::proto::ToWorker message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return fail("the shard sent a message of another protocol");
  }
  if (message.has_challenge() && phase_ == Phase::handshake && prove_ != nullptr) {
    prove_(*join_path_, message.challenge());
    prove_ = nullptr;
    to_post_ = true;
    return;
  }
  if (message.has_welcome() && phase_ == Phase::handshake) return take_welcome(message.welcome());
  if (message.has_active() && phase_ == Phase::activating) {
    phase_ = Phase::active;
    return;
  }
  if (message.has_lower_left() && phase_ == Phase::active) {
    lower_left_ = true;
    return;
  }
  fail(message.has_refused() ? message.refused() : "the shard sent a message out of turn");
}

void ShardPath::take_welcome(const ps::proto::Welcome& welcome) {
  // The keys originate in another process: the transport checks their form, the patterns check the memory that they
  // name.
  const absl::StatusOr<transport::RemoteRegion> slots = connection_->import(welcome.slots_key());
  if (!slots.ok()) return fail(fmt::format("the shard's region key: {}", message_of(slots.status())));
  slots_ = *slots;
  // A shard with its slots on a GPU has written its pattern there once, with its own seed.
  shared_answer_ = welcome.answer_seed() != 0;
  answer_seed_ = welcome.answer_seed();
  payload_on_gpu_ = !welcome.payload_key().empty();
  if (payload_on_gpu_) {
    const absl::StatusOr<transport::RemoteRegion> payload = connection_->import(welcome.payload_key());
    if (!payload.ok()) return fail(fmt::format("the shard's region key: {}", message_of(payload.status())));
    payload_ = *payload;
  }
  places_ = ps::SlotPlaces(*link_.map, link_.shard_index, welcome.slot_bytes());
  gradients_mapped_ = welcome.gradients_mapped();
  if (way_ == GpuTransfer::ipc && !welcome.device_mapped()) way_ = GpuTransfer::staged;
  device_refused_ = welcome.device_refused();
  was_welcome_ = true;
  if (const absl::Status written = write_check(); !written.ok()) return fail(std::string(message_of(written)));
  phase_ = Phase::checking;
  to_post_ = true;
}

/// Writes the pattern into the memory that gradients leave from: a pattern elsewhere would prove nothing about it.
absl::Status ShardPath::write_check() {
  const uint64_t seed = ps::check_seed_of_lane(join_path_->check_seed(), check_lane_);
  if (!shared_answer_) answer_seed_ = ps::check_answer_seed(seed);
  if (nic_region() != nullptr) return gpu_->write_check(seed);
  ps::fill_check({headers_.memory.data(), ps::kCheckBytes}, seed);
  return absl::OkStatus();
}

transport::LocalSlice ShardPath::check_source() const {
  if (nic_region() != nullptr) return {nic_region(), gpu_->check_out_offset(), ps::kCheckBytes};
  return {headers_.region.get(), 0, ps::kCheckBytes};
}

std::string ShardPath::compare_check() {
  std::string wrong = ps::compare_check({returns_.memory.data(), ps::kCheckBytes}, answer_seed_);
  if (!wrong.empty() || way_ == GpuTransfer::staged) return wrong;
  wrong = gpu_->compare_check(answer_seed_);
  return wrong.empty() ? wrong : fmt::format("in GPU memory: {}", wrong);
}

/// Packed parameters leave from the place of their gradient, also where the shard maps gradients.
bool ShardPath::uses_places() const { return !gradients_mapped_ || link_.returns != ReturnFormat::fp32; }

transport::RemoteSlice ShardPath::slot(uint32_t bucket_index) const {
  if (payload_on_gpu_) return {payload_, places_.payload_at(bucket_index)};
  return {slots_, places_.region_payload_at(bucket_index)};
}

const std::byte* ShardPath::packed_parameters(uint32_t bucket_index, ps::ElementRange range) const {
  assert(range.first >= link_.range.first);
  return returns_.memory.data() +
         ps::return_payload_at(link_.bucket_count, bucket_index, range.first - link_.range.first);
}

void ShardPath::on_check(uint64_t immediate) {
  if (immediate != ps::kCheckImmediate || phase_ != Phase::checking) return fail("the shard sent an unexpected put");
  // The space holds the headers of answers later: no remains of the pattern may be taken for one.
  const absl::Span<std::byte> arrived(returns_.memory.data(), ps::kCheckBytes);
  if (const std::string wrong = compare_check(); !wrong.empty()) return fail(wrong);
  std::fill(arrived.begin(), arrived.end(), std::byte{});
  if (++check_lane_ == connection_->lanes()) {
    phase_ = Phase::ready;
    return;
  }
  if (const absl::Status written = write_check(); !written.ok()) return fail(std::string(message_of(written)));
  to_post_ = true;
}

void ShardPath::on_lost(std::string_view cause) {
  GRADRAIL_CHECK(connection_ != nullptr);  // a context reports the loss of a connection once
  lost_in_check_ = phase_ == Phase::checking;
  described_ = describe();
  context_.context->close(connection_);
  connection_ = nullptr;
  fail(std::string(cause));
}

void ShardPath::fail(std::string why) {
  if (phase_ == Phase::failed) return;  // invariant 1: a refusal precedes the loss that follows it
  phase_ = Phase::failed;
  to_post_ = false;
  why_ = std::move(why);
}

std::string ShardPath::describe() const { return connection_ != nullptr ? connection_->describe() : described_; }

std::string ShardPath::connection_path() const {
  return connection_ != nullptr ? connection_->path() : context_.transport;
}

std::string ShardPath::left_out_text() const {
  const std::string left_out = connection_ == nullptr ? "" : connection_->left_out();
  return left_out.empty() ? "" : "; left out: " + left_out;
}

absl::Status register_model(OpenContext& open, RegistrationBudget& budget, MemorySpan parameters, MemorySpan gradients,
                            bool shard_on_gpu) {
  using transport::Access;
  // Shards read this memory only over a transport that maps it: the gradients, and parameters to check the mapping.
  // Elsewhere workers push gradients. A shard's GPU reads them by itself, and its driver pins nothing that cannot be
  // written.
  const bool maps = open.context->capabilities().direct_map;
  const Access mapped_gradients = shard_on_gpu ? Access::remote_read_write : Access::remote_read;
  GRADRAIL_ASSIGN_OR_RETURN(open.parameters,
                            transport::register_on(budget, *open.context, parameters,
                                                   maps ? Access::remote_read_write : Access::remote_write));
  GRADRAIL_ASSIGN_OR_RETURN(open.gradients, transport::register_on(budget, *open.context, gradients,
                                                                   maps ? mapped_gradients : Access::local));
  return absl::OkStatus();
}

std::string ShardPath::mapped_text() const {
  if (!gradients_mapped_ || way_ != GpuTransfer::staged) return "";
  return link_.returns == ReturnFormat::fp32 ? ", memory mapped both ways" : ", gradients mapped";
}

std::string ShardPath::shown_path() const {
  if (way_ == GpuTransfer::staged) return connection_path();
  return fmt::format("{} gpu-direct({})", connection_path(), gpu_transfer_name(way_));
}

std::string ShardPath::name() const {
  if (gpu_ != nullptr) return way_ == GpuTransfer::staged ? connection_path() + " staged" : shown_path();
  return fmt::format("{}{}", connection_path(), gradients_mapped_ ? " mapped" : "");
}

}  // namespace gradrail::worker
