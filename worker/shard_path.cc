#include "worker/shard_path.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/random_bits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/call_proof.h"
#include "ps/data_message.h"
#include "ps/path_check.h"
#include "worker/shard_link.h"

namespace gradrail::worker {

absl::StatusOr<std::unique_ptr<ShardPath>> ShardPath::open(
    ShardLink& link, OpenContext& context, const std::string& address, ps::proto::Hello hello, const std::string& key,
    transport::RegistrationBudget& budget, const MemoryPlacer& place, const GpuOffer& offer, TimePoint deadline) {
  std::unique_ptr<ShardPath> path(new ShardPath(link, context));
  const size_t header_bytes = std::max(link.buckets.size() * sizeof(ps::SlotHeader), ps::kCheckBytes);
  absl::StatusOr<transport::RegisteredMemory> headers = transport::make_registered(
      budget, *context.context, "gradrail-headers", header_bytes, transport::Access::local, place);
  if (!headers.ok()) return headers.status();
  const size_t return_bytes = std::max(link.buckets.size() * sizeof(ps::ReturnHeader), ps::kCheckBytes);
  absl::StatusOr<transport::RegisteredMemory> returns = transport::make_registered(
      budget, *context.context, "gradrail-returns", return_bytes, transport::Access::remote_write, place);
  if (!returns.ok()) return returns.status();
  absl::StatusOr<transport::Connection*> connection = context.context->connect(address, deadline);
  if (!connection.ok()) return connection.status();
  path->headers_ = *std::move(headers);
  path->returns_ = *std::move(returns);
  path->connection_ = *connection;
  path->connection_->set_user_data(reinterpret_cast<uint64_t>(path.get()));
  hello.set_returns_key(path->returns_.region->key());
  hello.set_check_seed(random_bits());
  path->hello_ = std::move(hello);
  path->key_ = key;
  path->offer(offer);
  return path;
}

void ShardPath::offer(const GpuOffer& offer) {
  gpu_ = offer.variables;
  way_ = offer.way;
  if (const transport::MemoryRegion* region = nic_region(); region != nullptr) {
    hello_.set_parameters_key(region->key());
    hello_.set_gpu_memory(name_of(way_));
    hello_.set_check_at(gpu_->check_in_offset());
    return;
  }
  hello_.set_parameters_key(context_.parameters->key());
  if (context_.context->capabilities().direct_map) hello_.set_gradients_key(context_.gradients->key());
  if (way_ != GpuWay::ipc) return;
  // Whoever maps the memory looks for it before it says Welcome.
  if (gpu_->write_check(hello_.check_seed()).ok()) hello_.set_device_key(offer.ipc_key);
}

/// GPU memory as this path's network device reaches it; null: it does not.
const transport::MemoryRegion* ShardPath::nic_region() const {
  if (way_ == GpuWay::dma_buf) return context_.gpu[static_cast<size_t>(GpuDirect::dma_buf)].get();
  if (way_ == GpuWay::peer_memory) return context_.gpu[static_cast<size_t>(GpuDirect::peer_memory)].get();
  return nullptr;
}

transport::LocalSlice ShardPath::gradients(ps::ElementRange range) const {
  const size_t bytes = range.count * sizeof(float);
  const transport::MemoryRegion* region = nic_region();
  if (region == nullptr) return {context_.gradients.get(), range.first * sizeof(float), bytes};
  return {region, gpu_->gradient_offset(range.first), bytes};
}

ShardPath::~ShardPath() {
  if (connection_ != nullptr) context_.context->close(connection_);
}

bool ShardPath::advance() {
  if (!to_post_) return false;
  ps::proto::ToShard message;
  switch (phase_) {
    case Phase::greeting:
      *message.mutable_hello() = hello_;
      post(ps::send_message(*connection_, message), "Hello");
      break;
    case Phase::checking:
      post(connection_->put(check_source(), {payload_on_gpu_ ? payload_ : slots_, 0},
                            {.immediate = ps::kCheckImmediate}),
           "the checked transfer");
      break;
    case Phase::activating:
      message.mutable_ready();
      post(ps::send_message(*connection_, message), "Ready");
      break;
    default:
      to_post_ = false;
  }
  return to_post_ && phase_ != Phase::failed;
}

void ShardPath::post(const absl::Status& posted, std::string_view what) {
  if (absl::IsResourceExhausted(posted)) return;
  to_post_ = false;
  if (!posted.ok()) fail(fmt::format("{}: {}", what, message_of(posted)));
}

void ShardPath::activate() {
  GRADRAIL_CHECK(phase_ == Phase::ready);
  phase_ = Phase::activating;
  to_post_ = true;
}

void ShardPath::on_message(absl::Span<const std::byte> bytes) {
  ps::proto::ToWorker message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return fail("the shard said something that is no message of this protocol");
  }
  if (message.has_challenge() && phase_ == Phase::greeting && hello_.proof().empty()) {
    hello_.set_proof(ps::mac_of(key_, {message.challenge()}));
    to_post_ = true;
    return;
  }
  if (message.has_welcome() && phase_ == Phase::greeting) return take_welcome(message.welcome());
  if (message.has_active() && phase_ == Phase::activating) {
    phase_ = Phase::active;
    return;
  }
  fail(message.has_refused() ? message.refused() : "the shard sent a message out of turn");
}

void ShardPath::take_welcome(const ps::proto::Welcome& welcome) {
  const absl::StatusOr<transport::RemoteRegion> slots = connection_->import(welcome.slots_key());
  if (!slots.ok()) return fail(fmt::format("the shard's region key: {}", message_of(slots.status())));
  slots_ = *slots;
  answer_seed_ = welcome.answer_seed() != 0 ? welcome.answer_seed() : ps::check_answer_seed(hello_.check_seed());
  payload_on_gpu_ = !welcome.payload_key().empty();
  if (payload_on_gpu_) {
    const absl::StatusOr<transport::RemoteRegion> payload = connection_->import(welcome.payload_key());
    if (!payload.ok()) return fail(fmt::format("the shard's region key: {}", message_of(payload.status())));
    payload_ = *payload;
  }
  gradients_mapped_ = welcome.gradients_mapped();
  if (way_ == GpuWay::ipc && !welcome.device_mapped()) way_ = GpuWay::staged;
  device_refused_ = welcome.device_refused();
  was_welcome_ = true;
  if (const absl::Status written = write_check(); !written.ok()) return fail(std::string(message_of(written)));
  phase_ = Phase::checking;
  to_post_ = true;
}

/// What gradients leave from is what the pattern leaves from.
absl::Status ShardPath::write_check() {
  if (nic_region() != nullptr) return gpu_->write_check(hello_.check_seed());
  ps::fill_check({headers_.memory.data(), ps::kCheckBytes}, hello_.check_seed());
  return absl::OkStatus();
}

transport::LocalSlice ShardPath::check_source() const {
  if (nic_region() != nullptr) return {nic_region(), gpu_->check_out_offset(), ps::kCheckBytes};
  return {headers_.region.get(), 0, ps::kCheckBytes};
}

std::string ShardPath::compare_check() {
  std::string wrong = ps::compare_check({returns_.memory.data(), ps::kCheckBytes}, answer_seed_);
  if (!wrong.empty() || way_ == GpuWay::staged) return wrong;
  wrong = gpu_->compare_check(answer_seed_);
  return wrong.empty() ? wrong : fmt::format("in GPU memory: {}", wrong);
}

transport::RemoteSlice ShardPath::payload(ps::ElementRange range) const {
  const uint64_t offset = (range.first - link_.range.first) * sizeof(float);
  if (payload_on_gpu_) return {payload_, offset};
  return {slots_, link_.buckets.size() * sizeof(ps::SlotHeader) + offset};
}

void ShardPath::on_check(uint64_t immediate) {
  if (immediate != ps::kCheckImmediate || phase_ != Phase::checking) return fail("the shard put something out of turn");
  const absl::Span<std::byte> arrived(returns_.memory.data(), ps::kCheckBytes);
  if (const std::string wrong = compare_check(); !wrong.empty()) return fail(wrong);
  std::fill(arrived.begin(), arrived.end(), std::byte{});
  phase_ = Phase::ready;
}

void ShardPath::on_lost(std::string_view cause) {
  described_ = describe();
  context_.context->close(connection_);
  connection_ = nullptr;
  fail(std::string(cause));
}

void ShardPath::fail(std::string why) {
  if (phase_ == Phase::failed) return;  // the first cause counts: a refusal comes before the loss that follows it
  phase_ = Phase::failed;
  to_post_ = false;
  why_ = std::move(why);
}

std::string ShardPath::describe() const { return connection_ != nullptr ? connection_->describe() : described_; }

std::string ShardPath::connection_path() const {
  return connection_ != nullptr ? connection_->path() : context_.transport;
}

std::string ShardPath::mapped_text() const {
  return gradients_mapped_ && way_ == GpuWay::staged ? ", memory mapped both ways" : "";
}

std::string ShardPath::shown_path() const {
  if (way_ == GpuWay::staged) return connection_path();
  return fmt::format("{} gpu-direct({})", connection_path(), name_of(way_));
}

std::string ShardPath::name() const {
  if (gpu_ != nullptr) return way_ == GpuWay::staged ? connection_path() + " staged" : shown_path();
  return fmt::format("{}{}", connection_path(), gradients_mapped_ ? " mapped" : "");
}

}  // namespace gradrail::worker
