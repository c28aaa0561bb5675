#include "ps/protocol/training.h"

#include <algorithm>
#include <string>

#include "base/status.h"
#include "fmt/format.h"
#include "gradrail/cluster.h"
#include "ps/protocol/control.pb.h"
#include "ps/protocol/exchange_layout.h"

namespace gradrail::ps {

absl::Status check_protocol_version(uint32_t theirs) {
  if (theirs == kProtocolVersion) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format(
      "protocol version {} here, {} there: install the same gradrail on all hosts", kProtocolVersion, theirs));
}

proto::Training to_proto(const Training& training) {
  proto::Training message;
  message.set_mode(mode_text(training.mode));
  message.set_worker_count(training.mode.worker_count);
  message.set_optimizer(std::string(optimizer_name(training.optimizer.kind)));
  message.set_learning_rate(training.optimizer.learning_rate);
  message.set_momentum(training.optimizer.momentum);
  message.set_beta1(training.optimizer.beta1);
  message.set_beta2(training.optimizer.beta2);
  message.set_epsilon(training.optimizer.epsilon);
  message.set_weight_decay(training.optimizer.weight_decay);
  message.set_momentum_every(training.optimizer.momentum_every);
  message.set_push(push_format_name(training.push));
  message.set_returns(std::string(return_format_name(training.returns)));
  message.set_bucket_bytes(training.bucket_bytes);
  message.set_agreement(training.agreement);
  return message;
}

absl::StatusOr<Training> from_proto(const proto::Training& message) {
  GRADRAIL_ASSIGN_OR_RETURN(Mode mode, parse_mode(message.mode()));
  GRADRAIL_ASSIGN_OR_RETURN(const OptimizerKind optimizer, parse_optimizer(message.optimizer()));
  GRADRAIL_ASSIGN_OR_RETURN(const PushFormat push, parse_push_format(message.push()));
  GRADRAIL_ASSIGN_OR_RETURN(const ReturnFormat returns, parse_return_format(message.returns()));
  // No step waits in async, so that the number of workers has no meaning.
  if (mode.waits() && (message.worker_count() == 0 || message.worker_count() > kMaxWorkers)) {
    return absl::InvalidArgumentError(fmt::format("mode {} needs the number of workers, 1 to {}: got {}",
                                                  message.mode(), kMaxWorkers, message.worker_count()));
  }
  mode.worker_count = message.worker_count();
  GRADRAIL_RETURN_IF_ERROR(check_bound(mode));
  const OptimizerConfig config = {.kind = optimizer,
                                  .learning_rate = message.learning_rate(),
                                  .momentum = message.momentum(),
                                  .beta1 = message.beta1(),
                                  .beta2 = message.beta2(),
                                  .epsilon = message.epsilon(),
                                  .weight_decay = message.weight_decay(),
                                  .momentum_every = message.momentum_every()};
  GRADRAIL_RETURN_IF_ERROR(validate(config));
  // The mean of one gradient is no parameter of a model.
  if (optimizer == OptimizerKind::mean && mode.kind != ModeKind::sync)
    return absl::InvalidArgumentError(fmt::format("optimizer mean: needs mode sync, not {}", message.mode()));
  return Training{.mode = mode,
                  .optimizer = config,
                  .push = push,
                  .returns = returns,
                  .bucket_bytes = message.bucket_bytes(),
                  .agreement = message.agreement()};
}

OptimizerConfig optimizer_of_run(const Training& training) {
  OptimizerConfig optimizer = training.optimizer;
  // A step that sums has the gradients of all workers already.
  if (optimizer.momentum_every == 0)
    optimizer.momentum_every = training.mode.sums() ? 1 : std::max(1u, training.mode.worker_count);
  return optimizer;
}

std::string difference(const Training& ours, const Training& theirs, const Sides& sides) {
  const auto say = [&](std::string_view what, const auto& here, const auto& there) {
    return fmt::format("{} {} {}, {} {}", what, here, sides.ours, there, sides.theirs);
  };
  // The number of workers may differ, because a cluster may grow.
  const std::string mode = mode_text(ours.mode);
  if (mode != mode_text(theirs.mode)) return say("mode", mode, mode_text(theirs.mode));
  const OptimizerConfig& a = ours.optimizer;
  const OptimizerConfig& b = theirs.optimizer;
  if (a.kind != b.kind) return say("optimizer", optimizer_name(a.kind), optimizer_name(b.kind));
  // Exact comparisons: equal texts parse to equal floats, and equal runs must end with equal bits.
  if (a.learning_rate != b.learning_rate) return say("learning_rate", a.learning_rate, b.learning_rate);
  if (a.momentum != b.momentum) return say("momentum", a.momentum, b.momentum);
  if (a.beta1 != b.beta1) return say("beta1", a.beta1, b.beta1);
  if (a.beta2 != b.beta2) return say("beta2", a.beta2, b.beta2);
  if (a.epsilon != b.epsilon) return say("epsilon", a.epsilon, b.epsilon);
  if (a.weight_decay != b.weight_decay) return say("weight_decay", a.weight_decay, b.weight_decay);
  if (a.momentum_every != b.momentum_every) return say("momentum_every", a.momentum_every, b.momentum_every);
  // Each worker in async chooses its own number of steps. A mode that waits would wait for the missing ones.
  if (ours.mode.waits() && ours.agreement != theirs.agreement) {
    return say("options", ours.agreement, theirs.agreement);
  }
  if (ours.push != theirs.push) return say("push", push_format_name(ours.push), push_format_name(theirs.push));
  if (ours.returns != theirs.returns)
    return say("return", return_format_name(ours.returns), return_format_name(theirs.returns));
  if (ours.bucket_bytes != theirs.bucket_bytes) return say("bucket_bytes", ours.bucket_bytes, theirs.bucket_bytes);
  return "";
}

proto::BeganFrom to_proto(const BeganFrom& began_from) {
  proto::BeganFrom message;
  if (began_from.global_step.has_value()) message.set_global_step(*began_from.global_step);
  message.set_saved_us(began_from.saved_us);
  return message;
}

BeganFrom from_proto(const proto::BeganFrom& message) {
  BeganFrom began_from = {.saved_us = message.saved_us()};
  if (message.has_global_step()) began_from.global_step = message.global_step();
  return began_from;
}

void to_proto(const Schema& schema, proto::JoinRequest& request) {
  for (const Tensor& tensor : schema) {
    proto::Tensor* message = request.add_schema();
    message->set_name(tensor.name);
    // The rank is not checked here: validate() checks whole schemas at both ends.
    message->mutable_shape()->Assign(tensor.shape.begin(), tensor.shape.end());
    message->set_fragment(tensor.fragment);
  }
}

Schema schema_from_proto(const proto::JoinRequest& request) {
  Schema schema;
  for (const proto::Tensor& tensor : request.schema()) {
    schema.push_back({tensor.name(), {tensor.shape().begin(), tensor.shape().end()}, tensor.fragment()});
  }
  return schema;
}

}  // namespace gradrail::ps
