// The public functions of the library; client_impl.h has the parts behind them.
#include "worker/client/client.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/status.h"
#include "spdlog/spdlog.h"
#include "worker/client/client_impl.h"

namespace gradrail::worker {

namespace {

/// An index that is too large by mistake looks the same: such a worker waits for the others.
void report_late_worker(const ClientOptions& options) {
  const size_t workers = options.cluster.workers.size();
  if (workers == 0 || options.task_index < workers) return;
  spdlog::warn("worker {} joins as a late worker: the cluster names the workers 0 to {}", options.task_index,
               workers - 1);
}

}  // namespace

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::~Client() = default;

absl::StatusOr<std::unique_ptr<Client>> Client::join(ClientOptions options, ps::Schema schema) {
  GRADRAIL_RETURN_IF_ERROR(ps::validate(schema));
  report_late_worker(options);
  auto impl = std::make_unique<Impl>(std::move(options), std::move(schema));
  const absl::Status joined = impl->join();
  if (!joined.ok()) {
    // Some ps tasks may count it as a member by now. In sync they must not treat this as a normal leave.
    if (!absl::IsCancelled(joined)) impl->leave(std::string(message_of(joined))).IgnoreError();
    return joined;
  }
  return std::unique_ptr<Client>(new Client(std::move(impl)));
}

const ps::Schema& Client::schema() const { return impl_->model().schema(); }
absl::Span<float> Client::parameters(size_t tensor_index) { return impl_->model().parameters(tensor_index); }
absl::Span<float> Client::gradients(size_t tensor_index) { return impl_->model().gradients(tensor_index); }
absl::Status Client::start() { return impl_->start(); }
void Client::ready(size_t tensor_index) { impl_->ready(tensor_index); }
void Client::ready_part(uint64_t first, uint64_t count, float rate, float weight) {
  impl_->ready({first, count}, rate, weight);
}
absl::Status Client::advance(Duration timeout) { return impl_->advance(timeout); }
bool Client::has_arrived(uint32_t fragment) const {
  return impl_->buckets().is_under_way(fragment) && impl_->buckets().outstanding(fragment) == 0;
}
void Client::exchange() { impl_->exchange(); }
void Client::exchange(uint32_t fragment) { impl_->exchange(fragment); }
void Client::progress() { impl_->progress(); }
absl::Status Client::wait() { return impl_->wait(); }
absl::Status Client::wait(uint32_t fragment) { return impl_->wait(fragment); }
void Client::wake() { impl_->wake(); }
absl::Status Client::set_learning_rate(float rate) { return impl_->set_learning_rate(rate); }
absl::Status Client::set_weight(float weight) { return impl_->set_weight(weight); }

absl::Status Client::pull() { return impl_->pull(); }
bool Client::on_device() const { return impl_->model().gpu() != nullptr; }
std::string Client::gpu_text() const { return impl_->paths().gpu_text(); }
bool Client::device_failed() const { return on_device() && !impl_->model().gpu()->status().ok(); }
absl::Status Client::fetch() { return impl_->model().fetch_parameters(); }
bool Client::is_initialised() const { return impl_->session().is_initialised(); }
uint64_t Client::global_step() const { return impl_->buckets().global_step(); }
uint64_t Client::global_step(uint32_t fragment) const { return impl_->buckets().global_step(fragment); }
uint64_t Client::position() const { return impl_->position(); }
int64_t Client::position(uint32_t fragment) const {
  const Exchange& exchange = impl_->buckets();
  return static_cast<int64_t>(impl_->position() + exchange.step(fragment) - exchange.step());
}
bool Client::is_chief() const { return impl_->session().is_chief(); }
absl::Status Client::barrier(const std::string& name) { return impl_->barrier(name, TimePoint::max()); }
absl::Status Client::barrier_live(const std::string& name, Duration timeout_for_absent) {
  return impl_->barrier(name, Clock::now() + timeout_for_absent);
}
absl::Status Client::begin_checkpoint() { return impl_->begin_checkpoint(); }
bool Client::checkpoint_under_way() const { return impl_->session().save().under_way(); }
absl::StatusOr<std::vector<std::string>> Client::finish_checkpoint() { return impl_->finish_checkpoint(); }
absl::StatusOr<std::vector<std::string>> Client::save_checkpoint() {
  GRADRAIL_RETURN_IF_ERROR(impl_->begin_checkpoint_when_free(begin_checkpoint()));
  return finish_checkpoint();
}
bool Client::saves_checkpoints() const { return impl_->session().saves_checkpoints(); }
absl::Status Client::finish_steps() { return impl_->finish_steps(); }
absl::Status Client::leave() { return impl_->leave(); }
absl::StatusOr<bool> Client::leave_unless_last() { return impl_->leave_unless_last(); }
absl::Status Client::give_up(const std::string& why) { return impl_->leave(why); }
ClientStats Client::stats() const { return impl_->stats(); }
ClientStats Client::published_stats() const { return impl_->telemetry().published_stats(); }
Duration Client::under_way() const { return impl_->telemetry().under_way(); }
std::vector<Mark> Client::marks() const { return impl_->telemetry().marks(); }
absl::Status Client::upload_trace() { return impl_->upload_trace(); }
absl::StatusOr<std::vector<TaskTrace>> Client::gather_trace() { return impl_->gather_trace(); }
std::vector<MemorySpan> Client::memory() const {
  return {impl_->model().parameter_span(), impl_->model().gradient_span()};
}

}  // namespace gradrail::worker
