#include "worker/shard_path.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/random_bits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/path_check.h"
#include "worker/shard_link.h"

namespace gradrail::worker {
namespace {

absl::Status send(transport::Connection& connection, const ps::proto::ToShard& message) {
  const std::string bytes = message.SerializeAsString();
  return connection.send(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShardPath>> ShardPath::open(ShardLink& link, OpenContext& context,
                                                           const std::string& address, ps::proto::Hello hello,
                                                           transport::RegistrationBudget& budget,
                                                           const MemoryPlacer& place, TimePoint deadline) {
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
  hello.set_parameters_key(context.parameters->key());
  hello.set_returns_key(path->returns_.region->key());
  if (context.context->capabilities().direct_map) hello.set_gradients_key(context.gradients->key());
  hello.set_check_seed(random_bits());
  path->hello_ = std::move(hello);
  return path;
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
      post(send(*connection_, message), "Hello");
      break;
    case Phase::checking:
      post(connection_->put({headers_.region.get(), 0, ps::kCheckBytes}, {slots_, 0},
                            {.immediate = ps::kCheckImmediate}),
           "the checked transfer");
      break;
    case Phase::activating:
      message.mutable_ready();
      post(send(*connection_, message), "Ready");
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
  gradients_mapped_ = welcome.gradients_mapped();
  device_mapped_ = welcome.device_mapped();
  device_refused_ = welcome.device_refused();
  ps::fill_check({headers_.memory.data(), ps::kCheckBytes}, hello_.check_seed());
  phase_ = Phase::checking;
  to_post_ = true;
}

void ShardPath::on_check(uint64_t immediate) {
  if (immediate != ps::kCheckImmediate || phase_ != Phase::checking) return fail("the shard put something out of turn");
  const absl::Span<std::byte> arrived(returns_.memory.data(), ps::kCheckBytes);
  const std::string wrong = ps::compare_check(arrived, ps::check_answer_seed(hello_.check_seed()));
  if (!wrong.empty()) return fail(wrong);
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
  if (device_mapped_) return ", GPU memory mapped both ways";
  return gradients_mapped_ ? ", memory mapped both ways" : "";
}

std::string ShardPath::name() const {
  if (device_mapped_) return connection_path() + " gpu-direct(ipc)";
  return fmt::format("{}{}", connection_path(), gradients_mapped_ ? " mapped" : "");
}

}  // namespace gradrail::worker
