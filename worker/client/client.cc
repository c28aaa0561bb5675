// The public functions of the library; client_impl.h has the parts behind them.
#include "gradrail/client.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/log.h"
#include "base/status.h"
#include "worker/client/client_impl.h"

namespace gradrail {
namespace {

/// An index that is too large by mistake looks the same: such a worker waits for the others.
void report_late_worker(const ClientOptions& options) {
  const size_t workers = options.cluster.workers.size();
  if (workers == 0 || options.task_index < workers) return;
  log_warning("worker {} joins as a late worker: the cluster names the workers 0 to {}", options.task_index,
              workers - 1);
}

}  // namespace

Client::Client(std::unique_ptr<worker::ClientImpl> joined) : impl_(std::move(joined)) {}
Client::~Client() = default;

absl::StatusOr<std::unique_ptr<Client>> Client::join(ClientOptions options, Schema schema) {
  return worker::ClientImpl::join_over(nullptr, std::move(options), std::move(schema));
}

absl::StatusOr<std::unique_ptr<Client>> worker::ClientImpl::join_over(std::shared_ptr<ps::ControlDialer> dialer,
                                                                      ClientOptions options, Schema schema) {
  GRADRAIL_RETURN_IF_ERROR(validate(schema));
  report_late_worker(options);
  auto impl = std::make_unique<ClientImpl>(std::move(options), std::move(schema), std::move(dialer));
  const absl::Status joined = impl->join();
  if (!joined.ok()) {
    // Some ps tasks may count it as a member by now. In sync they must not treat this as a normal leave.
    if (!absl::IsCancelled(joined)) impl->leave(std::string(message_of(joined))).IgnoreError();
    return joined;
  }
  return std::unique_ptr<Client>(new Client(std::move(impl)));
}

const Schema& Client::schema() const { return impl_->model().schema(); }
absl::Span<float> Client::parameters(size_t tensor_index) { return impl_->model().parameters(tensor_index); }
absl::Span<float> Client::gradients(size_t tensor_index) { return impl_->model().gradients(tensor_index); }
absl::Status Client::start() { return impl_->start(); }
void Client::ready(size_t tensor_index) { impl_->ready(tensor_index); }
void Client::exchange() { impl_->exchange(); }
void Client::exchange(uint32_t fragment) { impl_->exchange(fragment); }
absl::Status Client::wait() { return impl_->wait(); }
absl::Status Client::wait(uint32_t fragment) { return impl_->wait(fragment); }
void Client::wake() { impl_->wake(); }
absl::Status Client::pull() { return impl_->pull(); }
absl::Status Client::set_learning_rate(float rate) { return impl_->set_learning_rate(rate); }
absl::Status Client::set_weight(float weight) { return impl_->set_weight(weight); }
bool Client::is_initialised() const { return impl_->session().is_initialised(); }
uint64_t Client::global_step() const { return impl_->buckets().global_step(); }
uint64_t Client::global_step(uint32_t fragment) const { return impl_->buckets().global_step(fragment); }
uint64_t Client::position() const { return impl_->position(); }
int64_t Client::position(uint32_t fragment) const {
  const worker::Exchange& exchange = impl_->buckets();
  return static_cast<int64_t>(impl_->position() + exchange.step(fragment) - exchange.step());
}
bool Client::is_chief() const { return impl_->session().is_chief(); }
absl::Status Client::finish_steps() { return impl_->finish_steps(); }
absl::Status Client::leave() { return impl_->leave(); }
absl::StatusOr<bool> Client::leave_unless_last() { return impl_->leave_unless_last(); }
absl::Status Client::give_up(const std::string& why) { return impl_->leave(why); }
std::vector<MemorySpan> Client::memory() const {
  return {impl_->model().parameter_span(), impl_->model().gradient_span()};
}

bool Checkpoints::is_enabled() const { return client_->session().saves_checkpoints(); }
absl::Status Checkpoints::begin() { return client_->begin_checkpoint(); }
bool Checkpoints::is_under_way() const { return client_->session().save().under_way(); }
absl::StatusOr<std::vector<std::string>> Checkpoints::finish() { return client_->finish_checkpoint(); }
absl::StatusOr<std::vector<std::string>> Checkpoints::save() { return client_->save_checkpoint(); }

absl::Status Barriers::wait(const std::string& name) { return client_->barrier(name, TimePoint::max()); }
absl::Status Barriers::wait_for_live(const std::string& name, Duration timeout_for_absent) {
  return client_->barrier(name, Clock::now() + timeout_for_absent);
}

ClientStats Statistics::now() const { return client_->stats(); }
ClientStats Statistics::published() const { return client_->telemetry().published_stats(); }
Duration Statistics::exchange_under_way() const { return client_->telemetry().under_way(); }

std::vector<Mark> Traces::marks() const { return client_->telemetry().marks(); }
absl::Status Traces::upload() { return client_->upload_trace(); }
absl::StatusOr<std::vector<TaskTrace>> Traces::gather() { return client_->gather_trace(); }

bool ClientDevice::is_used() const { return client_->model().gpu() != nullptr; }
std::string ClientDevice::text() const { return client_->paths().gpu_text(); }
bool ClientDevice::has_failed() const { return is_used() && !client_->model().gpu()->status().ok(); }
absl::Status ClientDevice::fetch() { return client_->model().fetch_parameters(); }
void ClientDevice::progress() { client_->progress(); }

void Parts::ready(uint64_t first, uint64_t count, float rate, float weight) {
  client_->ready({first, count}, rate, weight);
}
absl::Status Parts::advance(Duration timeout) { return client_->advance(timeout); }
bool Parts::have_arrived(uint32_t fragment) const {
  return client_->buckets().is_under_way(fragment) && client_->buckets().outstanding(fragment) == 0;
}

}  // namespace gradrail
