#include "worker/models/device_network.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gpu/compute/stream_marks.h"
#include "worker/data/pixels.h"
#include "worker/models/accuracy.h"
#include "worker/models/workload.h"

namespace gradrail::worker {

DeviceNetwork::DeviceNetwork(NetworkPlan plan, std::unique_ptr<gpu::Compute> device)
    : plan_(std::move(plan)),
      layout_(device_layout(plan_.schema, plan_.push)),
      device_(std::move(device)),
      host_logits_(plan_.batch * plan_.classes) {}

DeviceNetwork::~DeviceNetwork() {
  device_->finish().IgnoreError();  // copies under way write into memory that is freed now
}

absl::StatusOr<std::unique_ptr<DeviceNetwork>> DeviceNetwork::create(NetworkPlan plan,
                                                                     std::unique_ptr<gpu::Compute> device) {
  std::unique_ptr<DeviceNetwork> network(new DeviceNetwork(std::move(plan), std::move(device)));
  GRADRAIL_RETURN_IF_ERROR(network->allocate());
  DeviceArena arena(network->memory_->data());
  // The second call of lay_out(): the first, in allocate(), only measured.
  network->lay_out(arena);
  GRADRAIL_RETURN_IF_ERROR(network->warm_up());
  return network;
}

/// Everything once, over zeros: what the device cannot do is known before there is a run. All that libraries load
/// and allocate is there before the first all-reduce, which a later allocation could wait for as it waits for it.
absl::Status DeviceNetwork::warm_up() {
  const std::vector<float> images(plan_.batch * plan_.pixels);
  const std::vector<uint8_t> labels(plan_.batch);
  // The parameters are one block, in the order of the schema: one copy serves all tensors.
  const std::vector<float> parameters(elements());
  device_->upload(images_, images.data(), images.size() * sizeof(float));
  device_->upload(labels_, labels.data(), labels.size());
  device_->upload(parameters_.front(), parameters.data(), parameters.size() * sizeof(float));
  costs_of_batch();
  for (size_t l = layers_.size(); l-- > 0;) {
    parameter_gradients(l);
    input_gradient(l);
  }
  return device_->finish();
}

absl::Status DeviceNetwork::allocate() {
  DeviceArena sizes;
  lay_out(sizes);
  // Parameters and gradients have their own allocation: another process may map it.
  const size_t variable_bytes = gpu::own_allocation(layout_.bytes);
  absl::StatusOr<std::unique_ptr<gpu::Memory>> memory = device_->allocate(sizes.bytes());
  absl::StatusOr<std::unique_ptr<gpu::Memory>> variables = device_->allocate(variable_bytes);
  const absl::Status& refused = memory.ok() ? variables.status() : memory.status();
  if (!refused.ok()) {
    // The client allocates its remainders of packing later.
    const size_t rest_bytes = plan_.push == PushFormat::fp32 ? 0 : elements() * sizeof(float);
    const size_t needed = sizes.bytes() + variable_bytes + rest_bytes;
    return absl::Status(refused.code(),
                        fmt::format("{} needs {} MiB: {}", plan_.name, (needed >> 20) + 1, message_of(refused)));
  }
  GRADRAIL_ASSIGN_OR_RETURN(host_step_, SharedMemory::create("gradrail-step", host_step_bytes()));
  memory_ = *std::move(memory);
  variables_ = *std::move(variables);
  return absl::OkStatus();
}

size_t DeviceNetwork::elements() const {
  size_t elements = 0;
  for (const Tensor& tensor : plan_.schema) elements += tensor.elements();
  return elements;
}

DeviceBlock DeviceNetwork::device_block() {
  auto* parameters = variables_->as<float>();
  return {.parameters = parameters, .gradients = parameters + layout_.gradients_at, .bytes = layout_.bytes};
}

void DeviceNetwork::lay_out(DeviceArena& arena) {
  layers_.clear();
  parameters_.clear();
  gradients_.clear();
  images_ = arena.take<float>(plan_.batch * plan_.pixels);
  labels_ = arena.take<uint8_t>(plan_.batch);
  costs_ = arena.take<float>(plan_.batch);
  // Null while allocate() measures: the tensors are not part of the arena.
  if (variables_ != nullptr) {
    float* next = variables_->as<float>();
    for (const Tensor& tensor : plan_.schema) {
      parameters_.push_back(next);
      gradients_.push_back(next + layout_.gradients_at);
      next += tensor.elements();
    }
  }
  for (const LayerPlan& layer : plan_.layers) {
    if (layer.kind == LayerPlan::Kind::convolution) {
      gpu::ImageShape images = layer.image;
      images.count = plan_.batch;
      layers_.push_back(std::make_unique<DeviceConvolution>(arena, images, layer.outputs));
    } else {
      layers_.push_back(
          std::make_unique<DeviceDense>(arena, plan_.batch, layer.inputs, layer.outputs, layer.activation));
    }
  }
}

void DeviceNetwork::upload_parameters(Parameters parameters) {
  GRADRAIL_CHECK(parameters.size() == plan_.schema.size());
  for (size_t t = 0; t < parameters.size(); ++t) {
    device_->upload(parameters_[t], parameters[t].data(), parameters[t].size() * sizeof(float));
  }
}

void DeviceNetwork::forward() {
  const float* input = images_;
  for (size_t l = 0; l < layers_.size(); ++l) {
    layers_[l]->forward(*device_, input, parameters_[plan_.layers[l].weights], parameters_[plan_.layers[l].bias]);
    input = layers_[l]->output();
  }
}

void DeviceNetwork::costs_of_batch() {
  forward();
  device_->softmax_cross_entropy(plan_.batch, plan_.classes, labels_, logits(), costs_);
}

absl::Status DeviceNetwork::send(const LayerPlan& layer, Gradients gradients) {
  const std::array tensors = {layer.weights, layer.bias};
  if (sum_ == nullptr) {
    for (const size_t tensor : tensors) {
      // A gradient that stays has no bytes to transfer, and the ticket shows when it is complete.
      const size_t bytes = stays_ ? 0 : gradients[tensor].size() * sizeof(float);
      leaving_.push_back({tensor, device_->download(gradients[tensor].data(), gradients_[tensor], bytes)});
    }
    return absl::OkStatus();
  }
  std::array<gpu::TowerSum::Part, 2> parts;
  for (size_t i = 0; i < parts.size(); ++i) {
    const absl::Span<float> target = gradients[tensors[i]];
    parts[i] = {gradients_[tensors[i]], target.size(), tower_ == 0 && !stays_ ? target.data() : nullptr};
  }
  const absl::StatusOr<gpu::CopyTicket> ticket = sum_->start(tower_, parts);
  GRADRAIL_RETURN_IF_ERROR(ticket.status());
  for (const size_t tensor : tensors) leaving_.push_back({tensor, *ticket});
  return absl::OkStatus();
}

bool DeviceNetwork::has_arrived(const Leaving& gradient) {
  return sum_ == nullptr ? device_->is_done(gradient.ticket) : sum_->is_done(tower_, gradient.ticket);
}

/// Reports the gradients that have arrived, without waiting: their exchange begins while the rest is enqueued.
absl::Status DeviceNetwork::tell_arrived(const GradientReady& ready) {
  // The order is that of sending: an early gradient waits for those before it.
  while (announced_ < leaving_.size() && has_arrived(leaving_[announced_])) {
    GRADRAIL_RETURN_IF_ERROR(tell_next(ready));
  }
  return absl::OkStatus();
}

absl::Status DeviceNetwork::tell_next(const GradientReady& ready) {
  const Leaving& next = leaving_[announced_];
  for (gpu::WaitInTurns wait; meanwhile_ != nullptr && !has_arrived(next); wait.turn()) meanwhile_();
  GRADRAIL_RETURN_IF_ERROR(sum_ == nullptr ? device_->wait(next.ticket) : sum_->wait(tower_, next.ticket));
  // The sum is the same in every tower: the first one alone announces it.
  if (ready && tower_ == 0) ready(next.tensor);
  ++announced_;
  return absl::OkStatus();
}

void DeviceNetwork::parameter_gradients(size_t l) {
  const LayerPlan& plan = plan_.layers[l];
  layers_[l]->parameter_gradients(*device_, l > 0 ? layers_[l - 1]->output() : images_, gradients_[plan.weights],
                                  gradients_[plan.bias]);
}

void DeviceNetwork::input_gradient(size_t l) {
  if (l == 0) return;
  layers_[l]->input_gradient(*device_, parameters_[plan_.layers[l].weights], layers_[l - 1]->output_gradient());
}

absl::Status DeviceNetwork::backward(Gradients gradients, const GradientReady& ready) {
  for (size_t l = layers_.size(); l-- > 0;) {
    parameter_gradients(l);
    if (stays_) input_gradient(l);  // it reads the parameters, which the receiver of `ready` may replace in place
    GRADRAIL_RETURN_IF_ERROR(send(plan_.layers[l], gradients));
    if (!stays_) input_gradient(l);
    GRADRAIL_RETURN_IF_ERROR(tell_arrived(ready));
  }
  while (announced_ < leaving_.size()) GRADRAIL_RETURN_IF_ERROR(tell_next(ready));
  return absl::OkStatus();
}

/// Only gradients that stay are recorded: other copies may have another target in each step. Towers wait for each
/// other.
absl::Status DeviceNetwork::record() {
  if (!stays_ || sum_ != nullptr || recording_ != nullptr || !why_not_recorded_.empty()) return absl::OkStatus();
  // The error of an upload of this step is not one of the recording.
  GRADRAIL_RETURN_IF_ERROR(device_->finish());
  recorded_to_ = host_costs().data();
  absl::StatusOr<std::unique_ptr<gpu::Recording>> made =
      gpu::Recording::make(*device_, [this](gpu::Recording& recording) {
        costs_of_batch();
        recording.copy_to_host(host_costs().data(), costs_, plan_.batch * sizeof(float));
        for (size_t l = layers_.size(); l-- > 0;) {
          parameter_gradients(l);
          input_gradient(l);
          recording.signal();
        }
      });
  if (made.ok())
    recording_ = *std::move(made);
  else
    why_not_recorded_ = message_of(made.status());
  return absl::OkStatus();
}

std::string DeviceNetwork::launches() const {
  if (!device_->is_device()) return "";
  if (sum_ != nullptr) return "one by one: towers wait for each other";
  if (!stays_) return "one by one: gradients leave for the host in each step";
  return recording_ != nullptr ? "recorded, 1 launch" : "one by one: " + why_not_recorded_;
}

absl::Status DeviceNetwork::replay(const GradientReady& ready) {
  GRADRAIL_CHECK(recorded_to_ == host_costs().data());
  recording_->replay();
  for (size_t l = layers_.size(); l-- > 0;) {
    const size_t point = layers_.size() - 1 - l;
    for (gpu::WaitInTurns wait; meanwhile_ != nullptr && !recording_->has_reached(point); wait.turn()) meanwhile_();
    GRADRAIL_RETURN_IF_ERROR(recording_->wait_for(point));
    if (!ready) continue;
    ready(plan_.layers[l].weights);
    ready(plan_.layers[l].bias);
  }
  return recording_->wait();
}

absl::Status DeviceNetwork::run(absl::Span<const float> images, Parameters parameters, Gradients gradients,
                                const GradientReady& ready) {
  leaving_.clear();
  announced_ = 0;
  if (parameters_from_ != nullptr) {
    device_->upload(parameters_.front(), parameters_from_, elements() * sizeof(float));
  } else if (!stays_) {
    upload_parameters(parameters);
  }
  device_->upload(images_, images.data(), images.size() * sizeof(float));
  device_->upload(labels_, host_labels().data(), host_labels().size());
  GRADRAIL_RETURN_IF_ERROR(record());
  if (sum_ == nullptr && recording_ != nullptr) return replay(ready);
  costs_of_batch();
  // The host copies the costs only: the kernel has replaced the logits by their gradient.
  const gpu::CopyTicket costs = device_->download(host_costs().data(), costs_, plan_.batch * sizeof(float));
  GRADRAIL_RETURN_IF_ERROR(backward(gradients, ready));
  return device_->wait(costs);
}

absl::StatusOr<float> DeviceNetwork::step(absl::Span<const float> images, absl::Span<const uint8_t> labels,
                                          Parameters parameters, Gradients gradients, const GradientReady& ready) {
  GRADRAIL_CHECK(images.size() == plan_.batch * plan_.pixels && labels.size() == plan_.batch);
  GRADRAIL_CHECK(gradients.size() == plan_.schema.size());
  // The device uses each label as an index without its own check.
  GRADRAIL_CHECK(*std::max_element(labels.begin(), labels.end()) < plan_.classes);
  pins_.cover(*device_, absl::MakeSpan(reinterpret_cast<std::byte*>(host_step_.data()), host_step_bytes()));
  if (!stays_) {
    pins_.cover_all(*device_, parameters);
    pins_.cover_all(*device_, gradients);
  }
  std::copy(labels.begin(), labels.end(), host_labels().begin());
  has_step_ = true;
  const absl::Status done = run(images, parameters, gradients, ready);
  if (!done.ok()) {
    device_->finish().IgnoreError();  // nothing writes into the caller's memory any more
    return done;
  }
  return static_cast<float>(std::accumulate(host_costs().begin(), host_costs().end(), 0.0) /
                            static_cast<double>(plan_.batch));
}

absl::StatusOr<float> DeviceNetwork::step(BatchLoader& loader, Parameters parameters, Gradients gradients,
                                          const GradientReady& ready) {
  pins_.cover(*device_, loader.image_memory());
  const BatchLoader::Batch batch = loader.next();
  return step(batch.images, batch.labels, parameters, gradients, ready);
}

std::optional<float> DeviceNetwork::batch_accuracy() {
  if (!has_step_) return std::nullopt;
  // A failure of the device is the result of the next step.
  if (!device_->wait(device_->download(host_logits_.data(), logits(), host_logits_.size() * sizeof(float))).ok())
    return std::nullopt;
  const float share = 1.0f / static_cast<float>(plan_.batch);
  size_t correct = 0;
  for (size_t row = 0; row < plan_.batch; ++row) {
    float* const values = host_logits_.data() + row * plan_.classes;
    // The gradient of a row is (probability - 1 at the label) / batch: its largest value shows the class.
    values[host_labels()[row]] += share;
    if (std::max_element(values, values + plan_.classes) == values + host_labels()[row]) ++correct;
  }
  return static_cast<float>(correct) / static_cast<float>(plan_.batch);
}

absl::StatusOr<float> DeviceNetwork::accuracy(absl::Span<const uint8_t> images, absl::Span<const uint8_t> labels,
                                              Parameters parameters) {
  const bool centred = plan_.form == BatchLoader::Form::kCentred;
  const AccuracyShape shape{.batch = plan_.batch,
                            .pixels = plan_.pixels,
                            .classes = plan_.classes,
                            .scale = centred ? centre_pixels : scale_pixels};
  absl::Status failed;
  upload_parameters(parameters);
  const float share = worker::accuracy(shape, images, labels, [&](const float* numbers) {
    device_->upload(images_, numbers, plan_.batch * plan_.pixels * sizeof(float));
    forward();
    // The remaining batches still run after a failure, with old logits; the status below replaces the result.
    failed.Update(device_->wait(device_->download(host_logits_.data(), logits(), host_logits_.size() * sizeof(float))));
    return host_logits_.data();
  });
  if (!failed.ok()) return failed;
  return share;
}

void DeviceNetwork::average_by(gpu::TowerSum* sum, size_t tower) {
  sum_ = sum;
  tower_ = sum == nullptr ? 0 : tower;
}

void DeviceNetwork::release_memory() {
  device_->finish().IgnoreError();
  recording_.reset();  // it copies to the memory that is unpinned here
  pins_.clear();
}

absl::StatusOr<std::unique_ptr<Network>> make_device_network(const WorkloadOptions& options,
                                                             std::unique_ptr<gpu::Compute> device) {
  NetworkPlan plan;
  if (options.model == "mlp") {
    plan = mlp_plan(mlp_shape(options));
  } else {
    GRADRAIL_ASSIGN_OR_RETURN(const Cnn::Shape shape, cnn_shape(options));
    plan = cnn_plan(shape);
  }
  plan.push = options.push;
  return DeviceNetwork::create(std::move(plan), std::move(device));
}

}  // namespace gradrail::worker
