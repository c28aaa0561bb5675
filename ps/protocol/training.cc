#include "ps/protocol/training.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "base/check.h"
#include "base/parse_number.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "ps/protocol/cluster_spec.h"
#include "ps/protocol/control.pb.h"
#include "ps/protocol/exchange_layout.h"

namespace gradrail::ps {
namespace {

// The order is that of their numbers.
constexpr std::array<std::string_view, 5> kPushFormatNames = {"fp32", "bf16", "int8", "int4", "topk"};
constexpr std::string_view kTopk = kPushFormatNames[PushFormat::topk];
constexpr std::array<std::string_view, 3> kReturnFormatNames = {"fp32", "bf16", "delta"};

/// The limit is above every useful bound, and far from the overflow of step + bound.
constexpr uint32_t kMaxModeBound = 1'000'000;

/// A mode with a number.
struct BoundedMode {
  std::string_view name;
  ModeKind kind;
  uint32_t least;
  std::string_view meaning;
};
constexpr BoundedMode kBoundedModes[] = {
    {"ssp", ModeKind::ssp, 0, "of steps that a worker may be ahead of the slowest: ssp:4"},
    {"quorum", ModeKind::quorum, 1, "of gradients for which a step waits: quorum:2"},
};

/// Parses a percentage with one decimal at most. None: another text, or more than 999.9.
std::optional<uint16_t> parse_thousandths(std::string_view percent) {
  const size_t point = percent.find('.');
  const std::string_view fraction = point == std::string_view::npos ? "0" : percent.substr(point + 1);
  const std::optional<uint16_t> whole = parse_number<uint16_t>(percent.substr(0, point));
  const std::optional<uint16_t> tenths = parse_number<uint16_t>(fraction);
  if (!whole || !tenths || *whole > 999 || fraction.size() != 1) return std::nullopt;
  return static_cast<uint16_t>(*whole * 10 + *tenths);
}

/// An outer step takes minutes. An hour covers the slowest of its workers.
constexpr double kMaxGraceSeconds = 3600.0;
constexpr std::string_view kGraceOption = "grace=";
constexpr std::string_view kDropOption = "late=drop";

/// The text behind "grace=". `mode` is the whole one, for errors.
absl::StatusOr<Grace> parse_grace(std::string_view value, std::string_view mode) {
  if (value == "auto") return Grace{.is_auto = true};
  const std::optional<double> seconds = parse_number<double>(value);
  // false for NaN
  if (!seconds || !(*seconds >= 0.0 && *seconds <= kMaxGraceSeconds)) {
    return absl::InvalidArgumentError(
        fmt::format("mode '{}': grace needs a number of seconds from 0 to {}, or auto", mode, kMaxGraceSeconds));
  }
  return Grace{.seconds = *seconds + 0.0};  // -0 becomes 0
}

/// The options behind "quorum:K,". `text` is the whole mode, for errors.
absl::Status parse_quorum_options(std::string_view options, std::string_view text, Mode& mode) {
  bool has_grace = false;
  for (size_t end = 0; end != std::string_view::npos; options.remove_prefix(std::min(end, options.size() - 1) + 1)) {
    end = options.find(',');
    const std::string_view option = options.substr(0, end);
    if (option == kDropOption && !mode.drops_late) {
      mode.drops_late = true;
    } else if (option.substr(0, kGraceOption.size()) == kGraceOption && !has_grace) {
      has_grace = true;
      GRADRAIL_ASSIGN_OR_RETURN(mode.grace, parse_grace(option.substr(kGraceOption.size()), text));
    } else {
      return absl::InvalidArgumentError(fmt::format(
          "mode '{}': the options of quorum:K are grace=SECONDS or grace=auto, and late=drop, once each", text));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string other_version(std::string_view theirs) {
  return fmt::format("protocol version {} here, {} there: install the same gradrail on all hosts", kProtocolVersion,
                     theirs);
}

std::string peer_without_gate() {
  return fmt::format("not gradrail, or {}", other_version(fmt::format("{} or older", kLastVersionWithoutGate)));
}

absl::Status check_protocol_version(uint32_t theirs) {
  if (theirs == kProtocolVersion) return absl::OkStatus();
  return absl::FailedPreconditionError(other_version(std::to_string(theirs)));
}

absl::StatusOr<Mode> parse_mode(std::string_view text) {
  if (text == "async") return Mode{.kind = ModeKind::async};
  if (text == "sync") return Mode{.kind = ModeKind::sync};
  const std::string_view name = text.substr(0, text.find_first_of(":,"));
  const auto* const found = std::find_if(std::begin(kBoundedModes), std::end(kBoundedModes),
                                         [&](const BoundedMode& mode) { return mode.name == name; });
  const size_t comma = text.find(',');
  if (comma != std::string_view::npos && (found == std::end(kBoundedModes) || found->kind != ModeKind::quorum)) {
    return absl::InvalidArgumentError(
        fmt::format("mode '{}': only quorum:K has options, such as quorum:2,grace=0.5", text));
  }
  if (found == std::end(kBoundedModes)) {
    return absl::InvalidArgumentError(fmt::format("mode '{}': there are async, sync, ssp:K, quorum:K", text));
  }
  const size_t colon = text.find(':');
  const std::string_view number = colon < comma ? text.substr(colon + 1, comma - colon - 1) : "";
  const std::optional<uint32_t> bound = parse_number<uint32_t>(number);
  // An empty text is not a number: "ssp" alone fails here as well.
  if (!bound || *bound < found->least || *bound > kMaxModeBound) {
    return absl::InvalidArgumentError(fmt::format("mode '{}': {} needs a number from {} to {}, {}", text, name,
                                                  found->least, kMaxModeBound, found->meaning));
  }
  Mode mode{.kind = found->kind, .bound = *bound};
  if (comma == std::string_view::npos) return mode;
  GRADRAIL_RETURN_IF_ERROR(parse_quorum_options(text.substr(comma + 1), text, mode));
  return mode;
}

absl::Status check_bound(const Mode& mode) {
  if (mode.kind == ModeKind::quorum && mode.bound > mode.worker_count) {
    return absl::InvalidArgumentError(fmt::format("--mode {}: K must not be more than {}, the number of workers",
                                                  mode_text(mode), mode.worker_count));
  }
  return absl::OkStatus();
}

std::string mode_text(const Mode& mode) {
  switch (mode.kind) {
    case ModeKind::async:
      return "async";
    case ModeKind::sync:
      return "sync";
    case ModeKind::ssp:
      return fmt::format("ssp:{}", mode.bound);
    case ModeKind::quorum: {
      std::string text = fmt::format("quorum:{}", mode.bound);
      if (mode.grace.is_auto) text += fmt::format(",{}auto", kGraceOption);
      if (mode.grace.seconds > 0) text += fmt::format(",{}{}", kGraceOption, mode.grace.seconds);
      if (mode.drops_late) text += fmt::format(",{}", kDropOption);
      return text;
    }
  }
  GRADRAIL_CHECK(false);
}

absl::StatusOr<PushFormat> parse_push_format(std::string_view name) {
  const size_t colon = name.find(':');
  if (name.substr(0, colon) == kTopk) {
    const std::string_view percent = colon == std::string_view::npos ? "" : name.substr(colon + 1);
    const std::optional<uint16_t> thousandths = parse_thousandths(percent);
    if (thousandths && *thousandths > 0 && *thousandths <= kMaxThousandths)
      return PushFormat(PushFormat::topk, *thousandths);
    return absl::InvalidArgumentError(fmt::format(
        "push format '{}': topk needs a percentage from 0.1 to {} with one decimal at most, as topk:0.5 or topk:1",
        name, kMaxThousandths / 10));
  }
  const auto found = std::find(kPushFormatNames.begin(), kPushFormatNames.end(), name);
  if (found != kPushFormatNames.end()) return static_cast<PushFormat::Kind>(found - kPushFormatNames.begin());
  return absl::InvalidArgumentError(
      fmt::format("push format '{}': there are {}:P", name, fmt::join(kPushFormatNames, ", ")));
}

std::string push_format_name(PushFormat format) {
  const std::string_view name = kPushFormatNames[format.kind];
  if (format.kind != PushFormat::topk) return std::string(name);
  const int tenths = format.thousandths % 10;
  return fmt::format("{}:{}{}", name, format.thousandths / 10, tenths == 0 ? "" : fmt::format(".{}", tenths));
}

absl::StatusOr<ReturnFormat> parse_return_format(std::string_view name) {
  const auto found = std::find(kReturnFormatNames.begin(), kReturnFormatNames.end(), name);
  if (found != kReturnFormatNames.end()) return static_cast<ReturnFormat>(found - kReturnFormatNames.begin());
  return absl::InvalidArgumentError(
      fmt::format("return format '{}': there are {}", name, fmt::join(return_format_names(), ", ")));
}

std::vector<std::string> return_format_names() { return {kReturnFormatNames.begin(), kReturnFormatNames.end()}; }

std::string_view return_format_name(ReturnFormat format) { return kReturnFormatNames[static_cast<size_t>(format)]; }

absl::Status validate(const OptimizerConfig& optimizer) {
  const auto check = [](std::string_view name, float value, float limit, std::string_view must_be) {
    if (value >= 0.0f && value < limit) return absl::OkStatus();  // false for NaN
    return absl::InvalidArgumentError(fmt::format("{} {}: must be {}", name, value, must_be));
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr std::string_view kFinite = "a finite number, 0 or more";
  constexpr std::string_view kShare = "0 or more and less than 1";
  GRADRAIL_RETURN_IF_ERROR(check("learning_rate", optimizer.learning_rate, kInfinity, kFinite));
  // The state would grow without a bound at a factor of 1 or more.
  GRADRAIL_RETURN_IF_ERROR(check("momentum", optimizer.momentum, 1.0f, kShare));
  GRADRAIL_RETURN_IF_ERROR(check("beta1", optimizer.beta1, 1.0f, kShare));
  GRADRAIL_RETURN_IF_ERROR(check("beta2", optimizer.beta2, 1.0f, kShare));
  GRADRAIL_RETURN_IF_ERROR(check("epsilon", optimizer.epsilon, kInfinity, kFinite));
  GRADRAIL_RETURN_IF_ERROR(check("weight_decay", optimizer.weight_decay, kInfinity, kFinite));
  if (optimizer.kind == OptimizerKind::mean && optimizer.weight_decay != 0.0f)
    return absl::InvalidArgumentError("weight_decay: the optimizer mean has none");
  if (optimizer.momentum_every != 0 && optimizer.kind != OptimizerKind::delayed_nesterov) {
    return absl::InvalidArgumentError(
        fmt::format("momentum_every {}: the optimizer {} has none; delayed_nesterov has it", optimizer.momentum_every,
                    optimizer_name(optimizer.kind)));
  }
  return absl::OkStatus();
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
