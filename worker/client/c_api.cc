// The C interface over Client. It checks arguments and the order of calls, translates texts, and stops exceptions; all
// else is the class's.
#include <algorithm>
#include <cstring>
#include <exception>
#include <new>

#include "base/status.h"
#include "fmt/format.h"
#include "ps/protocol/training.h"
#include "transport/negotiate.h"
#include "worker/client/client.h"
#include "worker/client/gradrail.h"

struct gradrail_client {
  std::unique_ptr<gradrail::worker::Client> client;
  // C programs often confuse the order of calls, which the class does not check: these fields do.
  bool has_parameters = false;  ///< started, or pulled
  bool started = false;
  bool pushed = false;  ///< between exchange and wait
  bool left = false;
  std::vector<bool> ready;  ///< per tensor, in the step under way
};

namespace gradrail::worker {
namespace {

/// The size of the struct in its first version: no program was built with less.
constexpr size_t kFirstStructBytes = offsetof(gradrail_options, join_timeout_s) + sizeof(double);

constexpr double kLongestJoinTimeoutS = 1e9;  // 31 years; 64 bits of nanoseconds end at 292 years

thread_local std::string last_error;  // one per thread, as errno: a C function returns a code only

gradrail_status report(const absl::Status& status) {
  if (status.ok()) return GRADRAIL_OK;
  last_error = std::string(message_of(status));
  return static_cast<gradrail_status>(status.raw_code());
}

/// Runs `body`; no exception may unwind into C.
template <typename Body>
gradrail_status guarded(Body body) noexcept {
  try {
    return report(body());
  } catch (const std::bad_alloc&) {
    return report(absl::ResourceExhaustedError("out of memory"));
  } catch (const std::exception& error) {
    return report(absl::InternalError(error.what()));
  }
}

std::string_view or_default(const char* text, std::string_view otherwise) {
  return text == nullptr || *text == '\0' ? otherwise : std::string_view(text);
}

void set_unless_zero(float given, float& value) {
  if (given != 0.0f) value = given;
}

absl::StatusOr<gradrail_options> known_part(const gradrail_options* given) {
  if (given == nullptr) return absl::InvalidArgumentError("gradrail_join: options is NULL");
  if (given->struct_bytes < kFirstStructBytes) {
    return absl::InvalidArgumentError("gradrail_join: begin options with GRADRAIL_OPTIONS_INIT");
  }
  gradrail_options options{};
  // A program of an older header has a shorter struct: the rest stays zero, which selects the defaults.
  std::memcpy(&options, given, std::min(given->struct_bytes, sizeof(options)));
  return options;
}

/// Adds the member of gradrail_options to an error that does not name it.
absl::Status in_member(std::string_view member, const absl::Status& status) {
  return absl::Status(status.code(), fmt::format("{}: {}", member, message_of(status)));
}

absl::StatusOr<Duration> join_timeout(double seconds, Duration otherwise) {
  if (seconds == 0) return otherwise;
  if (seconds > 0 && seconds <= kLongestJoinTimeoutS) {
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
  }
  return absl::InvalidArgumentError(fmt::format(
      "join_timeout_s {}: must be more than 0 and at most {}, or 0 for half an hour", seconds, kLongestJoinTimeoutS));
}

absl::StatusOr<ps::Security> security_of(const gradrail_options& given) {
  ps::Security security = {.insecure = given.insecure != 0};
  // 64 bits: the bytes behind `insecure` are undefined in the struct of an older header.
  security.encrypt_data = given.encrypt_data != 0;
  security.cert_file = or_default(given.cert_file, "");
  security.key_file = or_default(given.key_file, "");
  security.trusted_ca_file = or_default(given.trusted_ca_file, "");
  if (given.secret_file == nullptr) return security;
  GRADRAIL_ASSIGN_OR_RETURN(security.secret, ps::read_secret_file(given.secret_file));
  return security;
}

absl::StatusOr<ClientOptions> translate(const gradrail_options& given) {
  ClientOptions options;
  GRADRAIL_ASSIGN_OR_RETURN(ps::ClusterSpec cluster,
                            ps::cluster_from_hosts(or_default(given.ps_hosts, ""), or_default(given.worker_hosts, ""),
                                                   "ps_hosts/worker_hosts"));
  GRADRAIL_ASSIGN_OR_RETURN(const ps::TaskId task, ps::resolve_task(cluster, "worker", given.task_index));
  GRADRAIL_ASSIGN_OR_RETURN(const ps::Mode mode, ps::parse_mode(or_default(given.mode, "async")));
  GRADRAIL_ASSIGN_OR_RETURN(const ps::OptimizerKind kind, ps::parse_optimizer(or_default(given.optimizer, "sgd")));
  absl::StatusOr<std::vector<std::string>> transports =
      transport::parse_transport_order(or_default(given.transports, "auto"));
  if (!transports.ok()) return in_member("transports", transports.status());
  // Checked here as well as at the cut, because only this text can name the member.
  if (given.bucket_bytes % 64 != 0) {
    return absl::InvalidArgumentError(
        fmt::format("bucket_bytes {}: must be a multiple of 64, or 0 for 1 MiB", given.bucket_bytes));
  }
  options.cluster = std::move(cluster);
  options.task_index = task.index;
  options.mode = mode.kind;
  options.mode_bound = mode.bound;
  options.optimizer.kind = kind;
  set_unless_zero(given.learning_rate, options.optimizer.learning_rate);
  set_unless_zero(given.momentum, options.optimizer.momentum);
  set_unless_zero(given.beta1, options.optimizer.beta1);
  set_unless_zero(given.beta2, options.optimizer.beta2);
  set_unless_zero(given.epsilon, options.optimizer.epsilon);
  GRADRAIL_RETURN_IF_ERROR(ps::validate(options.optimizer));
  if (given.bucket_bytes != 0) options.bucket_bytes = given.bucket_bytes;
  options.transports = *std::move(transports);
  options.fallback = given.no_fallback == 0;
  options.checksums = given.checksums != 0;
  options.bind_host = or_default(given.bind_host, "");
  GRADRAIL_ASSIGN_OR_RETURN(options.security, security_of(given));
  GRADRAIL_ASSIGN_OR_RETURN(options.join_timeout, join_timeout(given.join_timeout_s, options.join_timeout));
  return options;
}

absl::StatusOr<ps::Schema> schema_of(const gradrail_tensor* tensors, size_t tensor_count) {
  ps::Schema schema;
  if (tensors == nullptr) return absl::InvalidArgumentError("gradrail_join: tensors is NULL");
  for (size_t i = 0; i < tensor_count; ++i) {
    const gradrail_tensor& tensor = tensors[i];
    if (tensor.name == nullptr || (tensor.shape == nullptr && tensor.dimension_count > 0)) {
      return absl::InvalidArgumentError(fmt::format("gradrail_join: tensor {} has no name or no shape", i));
    }
    schema.push_back({tensor.name, {tensor.shape, tensor.shape + tensor.dimension_count}});
  }
  return schema;
}

absl::Status join(const gradrail_options* given, const gradrail_tensor* tensors, size_t tensor_count,
                  gradrail_client** client) {
  if (client == nullptr) return absl::InvalidArgumentError("gradrail_join: client is NULL");
  // gradrail_free(NULL) is harmless, so that a program may free after an error.
  *client = nullptr;
  GRADRAIL_ASSIGN_OR_RETURN(const gradrail_options known, known_part(given));
  GRADRAIL_ASSIGN_OR_RETURN(ClientOptions options, translate(known));
  GRADRAIL_ASSIGN_OR_RETURN(ps::Schema schema, schema_of(tensors, tensor_count));
  GRADRAIL_ASSIGN_OR_RETURN(std::unique_ptr<Client> joined, Client::join(std::move(options), std::move(schema)));
  *client = new gradrail_client{.client = std::move(joined)};
  (*client)->ready.resize(tensor_count);
  return absl::OkStatus();
}

absl::Status check_client(std::string_view call, const gradrail_client* client) {
  if (client == nullptr) return absl::InvalidArgumentError(fmt::format("{}: client is NULL", call));
  if (!client->left) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format("{} after gradrail_leave: join again for a new client", call));
}

absl::Status check_may_push(std::string_view call, const gradrail_client* client) {
  GRADRAIL_RETURN_IF_ERROR(check_client(call, client));
  if (!client->has_parameters) {
    return absl::FailedPreconditionError(fmt::format("{} before gradrail_start: there are no parameters yet", call));
  }
  if (!client->pushed) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format("{} before gradrail_wait: an exchange is under way", call));
}

absl::Status check_tensor(const gradrail_client* client, size_t tensor_index) {
  if (client == nullptr) return absl::InvalidArgumentError("client is NULL");
  const size_t count = client->client->schema().size();
  if (tensor_index < count) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format("tensor {}: there are tensors 0 to {}", tensor_index, count - 1));
}

float* give(absl::Span<float> tensor, size_t* elements) {
  if (elements != nullptr) *elements = tensor.size();
  return tensor.data();
}

}  // namespace
}  // namespace gradrail::worker

using namespace gradrail::worker;

gradrail_status gradrail_join(const gradrail_options* options, const gradrail_tensor* tensors, size_t tensor_count,
                              gradrail_client** client) {
  return guarded([&] { return join(options, tensors, tensor_count, client); });
}

float* gradrail_parameters(gradrail_client* client, size_t tensor_index, size_t* elements) {
  if (report(check_tensor(client, tensor_index)) != GRADRAIL_OK) return nullptr;
  return give(client->client->parameters(tensor_index), elements);
}

float* gradrail_gradients(gradrail_client* client, size_t tensor_index, size_t* elements) {
  if (report(check_tensor(client, tensor_index)) != GRADRAIL_OK) return nullptr;
  return give(client->client->gradients(tensor_index), elements);
}

gradrail_status gradrail_start(gradrail_client* client) {
  return guarded([&]() -> absl::Status {
    GRADRAIL_RETURN_IF_ERROR(check_client("gradrail_start", client));
    if (client->started) return absl::FailedPreconditionError("gradrail_start: this client has started already");
    GRADRAIL_RETURN_IF_ERROR(client->client->start());
    client->started = client->has_parameters = true;
    return absl::OkStatus();
  });
}

gradrail_status gradrail_ready(gradrail_client* client, size_t tensor_index) {
  return guarded([&]() -> absl::Status {
    GRADRAIL_RETURN_IF_ERROR(check_tensor(client, tensor_index));
    GRADRAIL_RETURN_IF_ERROR(check_may_push("gradrail_ready", client));
    if (client->ready[tensor_index]) {
      return absl::FailedPreconditionError(
          fmt::format("gradrail_ready: tensor {} was ready before in this step", tensor_index));
    }
    client->ready[tensor_index] = true;
    client->client->ready(tensor_index);
    return absl::OkStatus();
  });
}

gradrail_status gradrail_exchange(gradrail_client* client) {
  return guarded([&]() -> absl::Status {
    GRADRAIL_RETURN_IF_ERROR(check_may_push("gradrail_exchange", client));
    client->pushed = true;
    client->client->exchange();
    return absl::OkStatus();
  });
}

gradrail_status gradrail_wait(gradrail_client* client) {
  return guarded([&]() -> absl::Status {
    GRADRAIL_RETURN_IF_ERROR(check_client("gradrail_wait", client));
    const auto ready = std::count(client->ready.begin(), client->ready.end(), true);
    if (!client->pushed && ready > 0 && static_cast<size_t>(ready) < client->ready.size()) {
      return absl::FailedPreconditionError(  // the wait would never end
          fmt::format("gradrail_wait before gradrail_exchange: only {} of {} tensors are ready", ready,
                      client->ready.size()));
    }
    // After an error the step stays under way: a program that ignores it cannot push again.
    GRADRAIL_RETURN_IF_ERROR(client->client->wait());
    client->pushed = false;
    client->ready.assign(client->ready.size(), false);
    return absl::OkStatus();
  });
}

gradrail_status gradrail_pull(gradrail_client* client) {
  return guarded([&]() -> absl::Status {
    GRADRAIL_RETURN_IF_ERROR(check_client("gradrail_pull", client));
    GRADRAIL_RETURN_IF_ERROR(client->client->pull());
    client->has_parameters = true;
    return absl::OkStatus();
  });
}

uint64_t gradrail_global_step(const gradrail_client* client) {
  return client == nullptr ? 0 : client->client->global_step();
}

gradrail_status gradrail_barrier(gradrail_client* client, const char* name) {
  return guarded([&]() -> absl::Status {
    GRADRAIL_RETURN_IF_ERROR(check_client("gradrail_barrier", client));
    return client->client->barrier(name == nullptr ? "" : name);
  });
}

gradrail_status gradrail_save_checkpoint(gradrail_client* client) {
  return guarded([&]() -> absl::Status {
    GRADRAIL_RETURN_IF_ERROR(check_client("gradrail_save_checkpoint", client));
    return client->client->save_checkpoint().status();
  });
}

gradrail_status gradrail_leave(gradrail_client* client) {
  return guarded([&]() -> absl::Status {
    if (client == nullptr) return check_client("gradrail_leave", client);
    client->left = true;  // a second leave has no effect
    return client->client->leave();
  });
}

void gradrail_free(gradrail_client* client) { delete client; }

const char* gradrail_version(void) { return GRADRAIL_VERSION; }

const char* gradrail_last_error(void) { return last_error.c_str(); }
