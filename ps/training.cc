#include "ps/training.h"

#include <limits>

#include "base/status.h"
#include "fmt/format.h"
#include "ps/cluster_spec.h"

namespace gradrail::ps {

absl::StatusOr<ModeKind> parse_mode(std::string_view name) {
  if (name == "async") return ModeKind::async;
  if (name == "sync") return ModeKind::sync;
  return absl::InvalidArgumentError(fmt::format("mode '{}': there are async, sync", name));
}

std::string_view mode_name(ModeKind kind) { return kind == ModeKind::sync ? "sync" : "async"; }

absl::Status validate(const OptimizerConfig& optimizer) {
  const auto check = [](std::string_view name, float value, float limit, std::string_view must_be) {
    if (value >= 0.0f && value < limit) return absl::OkStatus();  // false for NaN
    return absl::InvalidArgumentError(fmt::format("{} {}: must be {}", name, value, must_be));
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr std::string_view kFinite = "a finite number, 0 or more";
  constexpr std::string_view kShare = "0 or more and less than 1";
  GRADRAIL_RETURN_IF_ERROR(check("learning_rate", optimizer.learning_rate, kInfinity, kFinite));
  GRADRAIL_RETURN_IF_ERROR(check("momentum", optimizer.momentum, 1.0f, kShare));
  GRADRAIL_RETURN_IF_ERROR(check("beta1", optimizer.beta1, 1.0f, kShare));
  GRADRAIL_RETURN_IF_ERROR(check("beta2", optimizer.beta2, 1.0f, kShare));
  return check("epsilon", optimizer.epsilon, kInfinity, kFinite);
}

proto::Training to_proto(const Training& training) {
  proto::Training message;
  message.set_mode(std::string(mode_name(training.mode.kind)));
  message.set_worker_count(training.mode.worker_count);
  message.set_optimizer(std::string(optimizer_name(training.optimizer.kind)));
  message.set_learning_rate(training.optimizer.learning_rate);
  message.set_momentum(training.optimizer.momentum);
  message.set_beta1(training.optimizer.beta1);
  message.set_beta2(training.optimizer.beta2);
  message.set_epsilon(training.optimizer.epsilon);
  message.set_bucket_bytes(training.bucket_bytes);
  message.set_agreement(training.agreement);
  return message;
}

absl::StatusOr<Training> from_proto(const proto::Training& message) {
  const absl::StatusOr<ModeKind> mode = parse_mode(message.mode());
  if (!mode.ok()) return mode.status();
  const absl::StatusOr<OptimizerKind> optimizer = parse_optimizer(message.optimizer());
  if (!optimizer.ok()) return optimizer.status();
  if (*mode == ModeKind::sync && (message.worker_count() == 0 || message.worker_count() > kMaxWorkers)) {
    return absl::InvalidArgumentError(
        fmt::format("sync mode needs the number of workers, 1 to {}: got {}", kMaxWorkers, message.worker_count()));
  }
  const OptimizerConfig config = {.kind = *optimizer,
                                  .learning_rate = message.learning_rate(),
                                  .momentum = message.momentum(),
                                  .beta1 = message.beta1(),
                                  .beta2 = message.beta2(),
                                  .epsilon = message.epsilon()};
  GRADRAIL_RETURN_IF_ERROR(validate(config));
  return Training{.mode = {.kind = *mode, .worker_count = message.worker_count()},
                  .optimizer = config,
                  .bucket_bytes = message.bucket_bytes(),
                  .agreement = message.agreement()};
}

std::string difference(const Training& ours, const Training& theirs) {
  const auto say = [](std::string_view what, const auto& here, const auto& there) {
    return fmt::format("{} {} here, {} there", what, here, there);
  };
  if (ours.mode.kind != theirs.mode.kind) return say("mode", mode_name(ours.mode.kind), mode_name(theirs.mode.kind));
  if (ours.mode.kind == ModeKind::sync && ours.mode.worker_count != theirs.mode.worker_count) {
    return say("number of workers", ours.mode.worker_count, theirs.mode.worker_count);
  }
  const OptimizerConfig& a = ours.optimizer;
  const OptimizerConfig& b = theirs.optimizer;
  if (a.kind != b.kind) return say("optimizer", optimizer_name(a.kind), optimizer_name(b.kind));
  if (a.learning_rate != b.learning_rate) return say("learning_rate", a.learning_rate, b.learning_rate);
  if (a.momentum != b.momentum) return say("momentum", a.momentum, b.momentum);
  if (a.beta1 != b.beta1) return say("beta1", a.beta1, b.beta1);
  if (a.beta2 != b.beta2) return say("beta2", a.beta2, b.beta2);
  if (a.epsilon != b.epsilon) return say("epsilon", a.epsilon, b.epsilon);
  if (ours.mode.kind == ModeKind::sync && ours.agreement != theirs.agreement) {
    return say("options", ours.agreement, theirs.agreement);
  }
  if (ours.bucket_bytes != theirs.bucket_bytes) return say("bucket_bytes", ours.bucket_bytes, theirs.bucket_bytes);
  return "";
}

void to_proto(const Schema& schema, proto::JoinRequest& request) {
  for (const Tensor& tensor : schema) {
    proto::Tensor* message = request.add_schema();
    message->set_name(tensor.name);
    message->mutable_shape()->Assign(tensor.shape.begin(), tensor.shape.end());
  }
}

Schema schema_from_proto(const proto::JoinRequest& request) {
  Schema schema;
  for (const proto::Tensor& tensor : request.schema()) {
    schema.push_back({tensor.name(), {tensor.shape().begin(), tensor.shape().end()}});
  }
  return schema;
}

}  // namespace gradrail::ps
