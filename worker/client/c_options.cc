#include "worker/client/c_options.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "base/clock.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/protocol/training.h"
#include "transport/negotiate.h"
#include "transport/rails/greeting.h"

namespace gradrail::worker {
namespace {

/// A shorter struct does not name a task.
constexpr size_t kLeastStructBytes = offsetof(gradrail_options, task_index) + sizeof(uint32_t);

constexpr double kLongestTimeS = 1e9;  // 31 years; 64 bits of nanoseconds end at 292 years

std::string_view or_default(const char* text, std::string_view otherwise) {
  return text == nullptr || *text == '\0' ? otherwise : std::string_view(text);
}

void set_unless_zero(float given, float& value) {
  if (given != 0.0f) value = given;
}

/// Adds the member of gradrail_options to an error that does not name it.
absl::Status in_member(std::string_view member, const absl::Status& status) {
  return absl::Status(status.code(), fmt::format("{}: {}", member, message_of(status)));
}

/// Replaces `value` by a time that the program has set.
absl::Status take_time(std::string_view member, double seconds, std::string_view meaning_of_zero, Duration& value) {
  if (seconds == 0) return absl::OkStatus();
  if (!(seconds > 0 && seconds <= kLongestTimeS)) {
    return absl::InvalidArgumentError(fmt::format("{} {}: must be more than 0 and at most {}, or 0 for {}", member,
                                                  seconds, kLongestTimeS, meaning_of_zero));
  }
  value = from_seconds(seconds);
  return absl::OkStatus();
}

/// Origin of a member or of an environment variable, for error messages.
struct Source {
  std::string_view hosts, task, backups;
};
constexpr Source kMembers = {"ps_hosts/worker_hosts", "task_index", "backup_hosts"};
constexpr Source kVariables = {"GRADRAIL_PS_HOSTS/GRADRAIL_WORKER_HOSTS", "GRADRAIL_TASK_INDEX",
                               "GRADRAIL_BACKUP_HOSTS"};

const char* variable(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr || *text == '\0' ? nullptr : text;
}

/// Sets the members of the cluster from the environment, unless the program has set them.
absl::StatusOr<Source> take_environment(gradrail_options& given) {
  if (given.ps_hosts != nullptr) return kMembers;
  const char* const ps_hosts = variable("GRADRAIL_PS_HOSTS");
  if (ps_hosts == nullptr) {
    return absl::InvalidArgumentError(
        "ps_hosts is not set, and the environment has no GRADRAIL_PS_HOSTS: start the program with `gradrail run`, or "
        "name the hosts");
  }
  given.ps_hosts = ps_hosts;
  given.worker_hosts = variable("GRADRAIL_WORKER_HOSTS");
  const char* const index = variable("GRADRAIL_TASK_INDEX");
  if (index == nullptr || !absl::SimpleAtoi(index, &given.task_index)) {
    return absl::InvalidArgumentError(
        fmt::format("GRADRAIL_TASK_INDEX={}: must be the index of a worker", index == nullptr ? "" : index));
  }
  const auto take = [](const char*& member, const char* name) {
    if (member == nullptr) member = variable(name);
  };
  take(given.backup_hosts, "GRADRAIL_BACKUP_HOSTS");
  take(given.secret_file, "GRADRAIL_SECRET_FILE");
  take(given.trusted_ca_file, "GRADRAIL_TRUSTED_CA_FILE");
  take(given.cert_file, "GRADRAIL_CERT_FILE");
  take(given.key_file, "GRADRAIL_KEY_FILE");
  if (variable("GRADRAIL_ENCRYPT_DATA") != nullptr) given.encrypt_data = 1;
  if (variable("GRADRAIL_INSECURE") != nullptr) given.insecure = 1;
  const auto take_seconds = [](double& option, const char* name) {
    const char* const text = variable(name);
    if (option != 0 || text == nullptr || absl::SimpleAtod(text, &option)) return absl::OkStatus();
    return absl::InvalidArgumentError(fmt::format("{}={}: must be a number of seconds", name, text));
  };
  GRADRAIL_RETURN_IF_ERROR(take_seconds(given.join_timeout_s, "GRADRAIL_JOIN_TIMEOUT"));
  GRADRAIL_RETURN_IF_ERROR(take_seconds(given.rejoin_timeout_s, "GRADRAIL_REJOIN_TIMEOUT"));
  return kVariables;
}

absl::Status take_backups(std::string_view source, const gradrail_options& given, ClientOptions& options) {
  if (given.backup_hosts == nullptr) return absl::OkStatus();
  absl::StatusOr<std::vector<std::string>> backups = parse_host_list(given.backup_hosts);
  if (!backups.ok()) return in_member(source, backups.status());
  if (backups->size() != options.cluster.ps.size()) {
    return absl::InvalidArgumentError(
        fmt::format("{}: {} backups for {} parameter servers", source, backups->size(), options.cluster.ps.size()));
  }
  options.recovery.backups = *std::move(backups);
  return absl::OkStatus();
}

absl::StatusOr<Security> security_of(const gradrail_options& given) {
  Security security = {.insecure = given.insecure != 0};
  security.encrypt_data = given.encrypt_data != 0;
  security.cert_file = or_default(given.cert_file, "");
  security.key_file = or_default(given.key_file, "");
  security.trusted_ca_file = or_default(given.trusted_ca_file, "");
  if (given.secret_file == nullptr) return security;
  GRADRAIL_ASSIGN_OR_RETURN(security.secret, read_secret_file(given.secret_file));
  return security;
}

}  // namespace

absl::StatusOr<ClientOptions> to_client_options(const gradrail_options* program) {
  GRADRAIL_ASSIGN_OR_RETURN(
      gradrail_options given,
      known_part(program, kLeastStructBytes, "gradrail_join: begin options with GRADRAIL_OPTIONS_INIT"));
  ClientOptions options;
  GRADRAIL_ASSIGN_OR_RETURN(const Source source, take_environment(given));
  GRADRAIL_ASSIGN_OR_RETURN(ClusterSpec cluster, cluster_from_hosts(or_default(given.ps_hosts, ""),
                                                                    or_default(given.worker_hosts, ""), source.hosts));
  const absl::StatusOr<TaskId> task = resolve_task(cluster, "worker", given.task_index);
  if (!task.ok()) return in_member(source.task, task.status());
  GRADRAIL_ASSIGN_OR_RETURN(const Mode mode, parse_mode(or_default(given.mode, "async")));
  GRADRAIL_ASSIGN_OR_RETURN(const OptimizerKind kind, parse_optimizer(or_default(given.optimizer, "sgd")));
  GRADRAIL_ASSIGN_OR_RETURN(const PushFormat push, parse_push_format(or_default(given.push, "fp32")));
  GRADRAIL_ASSIGN_OR_RETURN(const ReturnFormat returns, parse_return_format(or_default(given.returns, "fp32")));
  absl::StatusOr<std::vector<std::string>> transports =
      transport::parse_transport_order(or_default(given.transports, "auto"));
  if (!transports.ok()) return in_member("transports", transports.status());
  // Checked here as well as at the cut, because only this text can name the member.
  if (given.bucket_bytes % 64 != 0) {
    return absl::InvalidArgumentError(fmt::format(
        "bucket_bytes {}: must be a multiple of 64, or 0 for a size that follows from the model", given.bucket_bytes));
  }
  options.cluster = std::move(cluster);
  options.task_index = task->index;
  options.mode = mode;
  options.bucket_bytes = given.bucket_bytes;
  options.compression = {.push = push, .returns = returns};
  options.optimizer.kind = kind;
  set_unless_zero(given.learning_rate, options.optimizer.learning_rate);
  set_unless_zero(given.momentum, options.optimizer.momentum);
  set_unless_zero(given.beta1, options.optimizer.beta1);
  set_unless_zero(given.beta2, options.optimizer.beta2);
  set_unless_zero(given.epsilon, options.optimizer.epsilon);
  options.optimizer.weight_decay = given.weight_decay;
  options.optimizer.momentum_every = given.momentum_every;
  GRADRAIL_RETURN_IF_ERROR(validate(options.optimizer));
  options.transport.order = *std::move(transports);
  options.transport.fallback = given.no_fallback == 0;
  options.transport.checksums = given.checksums != 0;
  options.transport.bind_host = or_default(given.bind_host, "");
  if (given.streams > transport::rails::kMaxLanes)
    return absl::InvalidArgumentError(
        fmt::format("streams {}: at most {}", given.streams, transport::rails::kMaxLanes));
  options.transport.streams = given.streams;
  // One source address reaches one network.
  options.transport.rails = given.no_rails == 0 && options.transport.bind_host.empty();
  GRADRAIL_RETURN_IF_ERROR(take_time("path_timeout_s", given.path_timeout_s, "10 s", options.transport.path_timeout));
  GRADRAIL_ASSIGN_OR_RETURN(options.security, security_of(given));
  RecoveryOptions& recovery = options.recovery;
  GRADRAIL_RETURN_IF_ERROR(take_time("join_timeout_s", given.join_timeout_s, "half an hour", recovery.join_timeout));
  GRADRAIL_RETURN_IF_ERROR(take_time("rejoin_timeout_s", given.rejoin_timeout_s, "no wait", recovery.rejoin_timeout));
  GRADRAIL_RETURN_IF_ERROR(take_backups(source.backups, given, options));
  if (given.interrupted != nullptr) {
    // No second call after a stop: the interpreter of the program may end before this thread does.
    options.hooks.interrupted = [call = given.interrupted, context = given.context,
                                 stopped = std::make_shared<std::atomic<std::thread::id>>()] {
      const std::thread::id self = std::this_thread::get_id();
      if (*stopped == self) return true;
      if (call(context) == 0) return false;
      *stopped = self;
      return true;
    };
  }
  return options;
}

absl::StatusOr<Schema> to_schema(std::string_view call, const gradrail_tensor* tensors, size_t tensor_count) {
  Schema schema;
  if (tensors == nullptr) return absl::InvalidArgumentError(fmt::format("{}: tensors is NULL", call));
  for (size_t i = 0; i < tensor_count; ++i) {
    const gradrail_tensor& tensor = tensors[i];
    if (tensor.name == nullptr || (tensor.shape == nullptr && tensor.dimension_count > 0)) {
      return absl::InvalidArgumentError(fmt::format("{}: tensor {} has no name or no shape", call, i));
    }
    schema.push_back({tensor.name, {tensor.shape, tensor.shape + tensor.dimension_count}});
  }
  return schema;
}

}  // namespace gradrail::worker
