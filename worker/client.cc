#include "worker/client.h"

#include <thread>

#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "worker/client_impl.h"

namespace gradrail::worker {
namespace {

constexpr uint32_t kBarrierPatienceMs = 1000;  // then we look whether to go on, and ask again
constexpr auto kNoticeEvery = std::chrono::seconds(10);
constexpr auto kSaveEnds = std::chrono::seconds(30);  // as long as a call that begins one may take
constexpr auto kBetweenAttempts = std::chrono::milliseconds(50);

}  // namespace

absl::Status Client::Impl::barrier(const std::string& name, TimePoint absent_until) {
  ps::proto::BarrierRequest request;
  *request.mutable_member() = member();
  request.set_name(name);
  request.set_patience_ms(kBarrierPatienceMs);
  request.set_generation(++barrier_generation_[name]);
  TimePoint notice_at = Clock::now() + kNoticeEvery;
  while (true) {
    go_to_standbys();
    GRADRAIL_RETURN_IF_ERROR(failure());
    answer_dump();
    if (asked_to_stop()) return absl::CancelledError(fmt::format("stopped while waiting at barrier '{}'", name));
    request.set_live_only(Clock::now() >= absent_until);
    const absl::StatusOr<ps::proto::BarrierReply> reply = controls_[0]->barrier(request);
    if (outlives(reply.status())) continue;
    if (!reply.ok()) return failure().ok() ? reply.status() : failure();
    if (reply->complete()) return absl::OkStatus();
    if (Clock::now() < notice_at) continue;
    notice_at += kNoticeEvery;
    options_.notice(fmt::format("barrier '{}': waiting for {}", name, fmt::join(reply->missing(), ", ")));
  }
}

absl::Status Client::Impl::make_no_more_steps() {
  GRADRAIL_RETURN_IF_ERROR(may_begin("make_no_more_steps"));
  steps_are_done_ = true;  // a standby that takes over from now on hears of it
  for (const auto& control : controls_) {
    const absl::Status said = control->say_steps_are_done(member());
    if (outlives(said)) continue;
    if (!said.ok()) return failure().ok() ? said : failure();
  }
  return absl::OkStatus();
}

absl::Status Client::Impl::begin_checkpoint() {
  absl::Status begun = save_->begin(member());
  if (!outlives(begun)) return begun;
  // Those that had begun are at it still.
  const TimePoint deadline = Clock::now() + kSaveEnds;
  do {
    begun = save_->begin(member());
    if (absl::IsAlreadyExists(begun)) std::this_thread::sleep_for(kBetweenAttempts);
  } while (absl::IsAlreadyExists(begun) && Clock::now() < deadline);
  return begun;
}

absl::StatusOr<std::vector<std::string>> Client::Impl::finish_checkpoint() {
  absl::StatusOr<std::vector<std::string>> files = save_->finish();
  while (outlives(files.status())) {  // the standby has what was to be saved, or later
    GRADRAIL_RETURN_IF_ERROR(begin_checkpoint());
    files = save_->finish();
  }
  return files;
}

absl::Status Client::Impl::leave(const std::string& failed) {
  if (left_) return absl::OkStatus();
  left_ = true;
  published_.publish(stats(), Clock::now());
  absl::Status first_error;
  // The heartbeats stop after Leave: their end without it would mean that we are lost.
  for (size_t i = 0; i < tokens_.size(); ++i) {  // those joined
    absl::Status said = controls_[i]->leave(member(), failed);
    if (failed.empty() && outlives(said)) said = controls_[i]->leave(member(), failed);
    first_error.Update(said);
  }
  for (const auto& control : controls_) control->stop_heartbeat();
  return first_error;
}

absl::Span<float> Client::Impl::view(const SharedMemory& memory, size_t tensor_index) {
  auto* elements = reinterpret_cast<float*>(memory.data());
  return {elements + tensor_first_[tensor_index], tensor_first_[tensor_index + 1] - tensor_first_[tensor_index]};
}

uint64_t Client::Impl::global_step() const {
  for (const auto& link : links_) {
    if (!link->buckets.empty()) return link->buckets[0].version;
  }
  return 0;
}

ClientStats Client::Impl::stats() const {
  ClientStats stats = stats_;
  stats.global_step = global_step();
  if (gpu_ != nullptr) stats.flushes = gpu_->flushes();
  for (const auto& link : links_) {
    if (link->path == nullptr) continue;
    if (const std::string name = link->path->name(); stats.paths_in_use.find(name) == std::string::npos)
      stats.paths_in_use += (stats.paths_in_use.empty() ? "" : ", ") + name;
    stats.paths.push_back(fmt::format(
        "shard {} at {}: {}{}", link->shard_index, controls_[link->ps_index]->address(),
        transport::explain(link->candidates, link->candidates[link->candidate].name, link->path->shown_path()),
        link->path->mapped_text()));
  }
  for (const auto& [path, bytes] : path_bytes_) {
    stats.path_bytes.push_back({path, bytes.pushed, bytes.returned});
    stats.bytes_pushed += bytes.pushed;
    stats.bytes_returned += bytes.returned;
  }
  return stats;
}

void Client::Impl::fail(absl::Status cause) {
  {
    std::lock_guard lock(failure_mutex_);
    if (failure_.ok()) failure_ = std::move(cause);
    failed_.store(true, std::memory_order_release);
  }
  wait_set_.wake();
}

absl::Status Client::Impl::failure() {
  if (!failed_.load(std::memory_order_acquire)) return absl::OkStatus();
  std::lock_guard lock(failure_mutex_);
  return failure_;
}

ps::proto::Member Client::Impl::member() const {
  ps::proto::Member member;
  member.set_task_index(options_.task_index);
  member.set_incarnation(incarnation_);
  return member;
}

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::~Client() = default;

absl::StatusOr<std::unique_ptr<Client>> Client::join(ClientOptions options, ps::Schema schema) {
  GRADRAIL_RETURN_IF_ERROR(ps::validate(schema));
  auto impl = std::make_unique<Impl>(std::move(options), std::move(schema));
  const absl::Status joined = impl->join();
  if (!joined.ok()) {
    // Some ps may count it as a member by now; in sync they must not take this for a goodbye and go on without it.
    if (!absl::IsCancelled(joined)) impl->leave(std::string(message_of(joined))).IgnoreError();
    return joined;
  }
  return std::unique_ptr<Client>(new Client(std::move(impl)));
}

const ps::Schema& Client::schema() const { return impl_->schema(); }
absl::Span<float> Client::parameters(size_t tensor_index) { return impl_->parameters(tensor_index); }
absl::Span<float> Client::gradients(size_t tensor_index) { return impl_->gradients(tensor_index); }
absl::Status Client::start() { return impl_->start(); }
void Client::ready(size_t tensor_index) { impl_->ready(tensor_index); }
void Client::exchange() { impl_->exchange(); }
void Client::progress() { impl_->progress(); }
absl::Status Client::wait() { return impl_->wait(); }
absl::Status Client::pull() { return impl_->pull(); }
bool Client::on_device() const { return impl_->on_device(); }
std::string Client::gpu_text() const { return impl_->gpu_text(); }
bool Client::device_failed() const { return impl_->device_failed(); }
absl::Status Client::fetch() { return impl_->fetch(); }
uint64_t Client::global_step() const { return impl_->global_step(); }
uint64_t Client::position() const { return impl_->position(); }
bool Client::is_chief() const { return impl_->is_chief(); }
absl::Status Client::barrier(const std::string& name) { return impl_->barrier(name, TimePoint::max()); }
absl::Status Client::barrier_of_the_living(const std::string& name, Duration patience_for_absent) {
  return impl_->barrier(name, Clock::now() + patience_for_absent);
}
absl::Status Client::begin_checkpoint() { return impl_->begin_checkpoint(); }
bool Client::checkpoint_under_way() const { return impl_->checkpoint_under_way(); }
absl::StatusOr<std::vector<std::string>> Client::finish_checkpoint() { return impl_->finish_checkpoint(); }
absl::StatusOr<std::vector<std::string>> Client::save_checkpoint() {
  GRADRAIL_RETURN_IF_ERROR(begin_checkpoint());
  return finish_checkpoint();
}
bool Client::saves_checkpoints() const { return impl_->saves_checkpoints(); }
absl::Status Client::make_no_more_steps() { return impl_->make_no_more_steps(); }
absl::Status Client::leave() { return impl_->leave(); }
absl::Status Client::give_up(const std::string& why) { return impl_->leave(why); }
ClientStats Client::stats() const { return impl_->stats(); }
ClientStats Client::published_stats() const { return impl_->published().stats(); }
Duration Client::under_way() const { return impl_->published().under_way(Clock::now()); }
std::vector<Mark> Client::marks() const { return impl_->marks(); }
absl::Status Client::hand_in_trace() { return impl_->hand_in_trace(); }
absl::StatusOr<std::vector<TaskTrace>> Client::gather_trace() { return impl_->gather_trace(); }
std::vector<MemorySpan> Client::memory() const { return impl_->memory(); }

}  // namespace gradrail::worker
