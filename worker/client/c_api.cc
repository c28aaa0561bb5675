// The C interface over Client. It checks arguments and the order of calls, translates texts, and stops exceptions; all
// else is the class's.
#include <string>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gradrail/client.h"
#include "gradrail/gradrail.h"
#include "ps/protocol/schema.h"
#include "worker/client/c_call.h"
#include "worker/client/c_options.h"
#include "worker/client/stats_json.h"

struct gradrail_client {
  std::unique_ptr<gradrail::Client> client;
  // C programs often confuse the order of calls, which the class does not check: these fields do.
  bool has_parameters = false;  ///< started, or pulled
  bool started = false;
  bool steps_finished = false;
  bool left = false;
  bool gave_up = false;  ///< left with gradrail_give_up
  gradrail::ps::Layout layout;
  std::vector<bool> pushed;  ///< pushed fragments, between exchange and wait
  std::vector<bool> ready;   ///< complete tensors of the step under way
  uint32_t task_index = 0;
  std::string stats;  ///< the last text of gradrail_stats_json()
};

namespace gradrail::worker {
namespace {

thread_local std::string last_error;  // one per thread, as errno: a C function returns a code only

}  // namespace

gradrail_status report(const absl::Status& status) {
  if (status.ok()) return GRADRAIL_OK;
  last_error = std::string(message_of(status));
  return static_cast<gradrail_status>(status.raw_code());
}

namespace {

absl::Status join(const gradrail_options* given, const gradrail_tensor* tensors, const char* const* fragments,
                  size_t tensor_count, gradrail_client** client) {
  if (client == nullptr) return absl::InvalidArgumentError("gradrail_join: client is NULL");
  // gradrail_free(NULL) is harmless, so that a program may free after an error.
  *client = nullptr;
  GRADRAIL_ASSIGN_OR_RETURN(ClientOptions options, to_client_options(given));
  GRADRAIL_ASSIGN_OR_RETURN(Schema schema, to_schema("gradrail_join", tensors, tensor_count));
  for (size_t i = 0; fragments != nullptr && i < tensor_count; ++i) {
    if (fragments[i] != nullptr) schema[i].fragment = fragments[i];
  }
  const uint32_t task_index = options.task_index;
  ps::Layout layout = ps::layout_of(schema);
  GRADRAIL_ASSIGN_OR_RETURN(std::unique_ptr<Client> joined, Client::join(std::move(options), std::move(schema)));
  *client = new gradrail_client{.client = std::move(joined),
                                .layout = std::move(layout),
                                .pushed = {},
                                .ready = {},
                                .task_index = task_index,
                                .stats = {}};
  (*client)->pushed.resize((*client)->layout.fragments.size());
  (*client)->ready.resize(tensor_count);
  return absl::OkStatus();
}

absl::Status check_client(std::string_view call, const gradrail_client* client) {
  if (client == nullptr) return absl::InvalidArgumentError(fmt::format("{}: client is NULL", call));
  if (!client->left) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format(
      "{} after {}: join again for a new client", call,
      client->gave_up ? "gradrail_give_up, with which this worker has reported a failure" : "gradrail_leave"));
}

absl::Status check_fragment(std::string_view call, const gradrail_client* client, size_t fragment) {
  GRADRAIL_RETURN_IF_ERROR(check_client(call, client));
  const size_t count = client->pushed.size();
  if (fragment < count) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("{}: fragment {}: there are fragments 0 to {}", call, fragment, count - 1));
}

absl::Status check_may_push(std::string_view call, const gradrail_client* client, size_t fragment) {
  GRADRAIL_RETURN_IF_ERROR(check_fragment(call, client, fragment));
  if (!client->has_parameters) {
    return absl::FailedPreconditionError(fmt::format("{} before gradrail_start: there are no parameters yet", call));
  }
  if (client->steps_finished) {
    return absl::FailedPreconditionError(
        fmt::format("{} after gradrail_finish_steps: this worker sends no further gradients", call));
  }
  if (!client->pushed[fragment]) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format("{} before gradrail_wait: an exchange is under way", call));
}

absl::Status check_tensor(const gradrail_client* client, size_t tensor_index) {
  if (client == nullptr) return absl::InvalidArgumentError("client is NULL");
  const size_t count = client->client->schema().size();
  if (tensor_index < count) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format("tensor {}: there are tensors 0 to {}", tensor_index, count - 1));
}

absl::Status report_ready(std::string_view call, gradrail_client* client, absl::Span<const size_t> tensors) {
  for (const size_t tensor : tensors) GRADRAIL_RETURN_IF_ERROR(check_tensor(client, tensor));
  GRADRAIL_RETURN_IF_ERROR(check_client(call, client));
  std::vector<bool> ready = client->ready;
  for (const size_t tensor : tensors) {
    GRADRAIL_RETURN_IF_ERROR(check_may_push(call, client, client->layout.tensor_fragment[tensor]));
    if (ready[tensor]) {
      return absl::FailedPreconditionError(fmt::format("{}: tensor {} was ready before in this step", call, tensor));
    }
    ready[tensor] = true;
  }
  client->ready = std::move(ready);
  for (const size_t tensor : tensors) client->client->ready(tensor);
  return absl::OkStatus();
}

absl::Status push(std::string_view call, gradrail_client* client, size_t fragment) {
  GRADRAIL_RETURN_IF_ERROR(check_may_push(call, client, fragment));
  client->pushed[fragment] = true;
  client->client->exchange(static_cast<uint32_t>(fragment));
  return absl::OkStatus();
}

absl::Status push_all(std::string_view call, gradrail_client* client) {
  GRADRAIL_RETURN_IF_ERROR(check_client(call, client));
  // This check precedes the first push: a refused call changes nothing.
  for (size_t i = 0; i < client->pushed.size(); ++i) GRADRAIL_RETURN_IF_ERROR(check_may_push(call, client, i));
  for (size_t i = 0; i < client->pushed.size(); ++i) GRADRAIL_RETURN_IF_ERROR(push(call, client, i));
  return absl::OkStatus();
}

/// Ends the step under way. After an error the step stays open: a program that ignores the error cannot push again.
absl::Status end_step(std::string_view call, gradrail_client* client, size_t fragment) {
  size_t ready = 0, all = 0;
  for (size_t i = 0; i < client->ready.size(); ++i) {
    if (client->layout.tensor_fragment[i] != fragment) continue;
    ++all;
    if (client->ready[i]) ++ready;
  }
  if (!client->pushed[fragment] && ready > 0 && ready < all) {
    return absl::FailedPreconditionError(  // the wait would never end
        fmt::format("{} before gradrail_exchange: only {} of {} tensors are ready", call, ready, all));
  }
  GRADRAIL_RETURN_IF_ERROR(client->client->wait(static_cast<uint32_t>(fragment)));
  client->pushed[fragment] = false;
  for (size_t i = 0; i < client->ready.size(); ++i) {
    if (client->layout.tensor_fragment[i] == fragment) client->ready[i] = false;
  }
  return absl::OkStatus();
}

absl::Status end_all(std::string_view call, gradrail_client* client) {
  for (size_t i = 0; i < client->pushed.size(); ++i) GRADRAIL_RETURN_IF_ERROR(end_step(call, client, i));
  return absl::OkStatus();
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
  return guarded([&] { return join(options, tensors, nullptr, tensor_count, client); });
}

gradrail_status gradrail_join_fragments(const gradrail_options* options, const gradrail_tensor* tensors,
                                        const char* const* fragments, size_t tensor_count, gradrail_client** client) {
  return guarded([&] { return join(options, tensors, fragments, tensor_count, client); });
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
  return guarded([&] { return report_ready("gradrail_ready", client, {&tensor_index, 1}); });
}

gradrail_status gradrail_ready_many(gradrail_client* client, const size_t* tensor_indexes, size_t count) {
  return guarded([&]() -> absl::Status {
    if (tensor_indexes == nullptr && count > 0) {
      return absl::InvalidArgumentError("gradrail_ready_many: tensor_indexes is NULL");
    }
    return report_ready("gradrail_ready_many", client, {tensor_indexes, count});
  });
}

gradrail_status gradrail_exchange(gradrail_client* client) {
  return guarded([&] { return push_all("gradrail_exchange", client); });
}

gradrail_status gradrail_exchange_fragment(gradrail_client* client, size_t fragment) {
  return guarded([&] { return push("gradrail_exchange", client, fragment); });
}

gradrail_status gradrail_wait_fragment(gradrail_client* client, size_t fragment) {
  return guarded([&]() -> absl::Status {
    GRADRAIL_RETURN_IF_ERROR(check_fragment("gradrail_wait", client, fragment));
    return end_step("gradrail_wait", client, fragment);
  });
}

uint64_t gradrail_fragment_step(const gradrail_client* client, size_t fragment) {
  if (!check_fragment("gradrail_fragment_step", client, fragment).ok()) return 0;
  return client->client->global_step(static_cast<uint32_t>(fragment));
}

gradrail_status gradrail_wait(gradrail_client* client) {
  return guarded([&]() -> absl::Status {
    GRADRAIL_RETURN_IF_ERROR(check_client("gradrail_wait", client));
    return end_all("gradrail_wait", client);
  });
}

gradrail_status gradrail_step(gradrail_client* client) {
  return guarded([&]() -> absl::Status {
    GRADRAIL_RETURN_IF_ERROR(push_all("gradrail_step", client));
    return end_all("gradrail_step", client);
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

gradrail_status gradrail_set_learning_rate(gradrail_client* client, float rate) {
  return guarded([&]() -> absl::Status {
    GRADRAIL_RETURN_IF_ERROR(check_client("gradrail_set_learning_rate", client));
    return client->client->set_learning_rate(rate);
  });
}

gradrail_status gradrail_set_weight(gradrail_client* client, float weight) {
  return guarded([&]() -> absl::Status {
    GRADRAIL_RETURN_IF_ERROR(check_client("gradrail_set_weight", client));
    return client->client->set_weight(weight);
  });
}

uint64_t gradrail_global_step(const gradrail_client* client) {
  return client == nullptr ? 0 : client->client->global_step();
}

uint32_t gradrail_task_index(const gradrail_client* client) { return client == nullptr ? 0 : client->task_index; }

int gradrail_is_chief(const gradrail_client* client) { return client != nullptr && client->client->is_chief() ? 1 : 0; }

int64_t gradrail_fragment_position(const gradrail_client* client, size_t fragment) {
  if (!check_fragment("gradrail_fragment_position", client, fragment).ok()) return -1;
  return client->client->position(static_cast<uint32_t>(fragment));
}

uint64_t gradrail_position(const gradrail_client* client) { return client == nullptr ? 0 : client->client->position(); }

const char* gradrail_stats_json(gradrail_client* client) {
  const gradrail_status written = guarded([&]() -> absl::Status {
    if (client == nullptr) return absl::InvalidArgumentError("gradrail_stats_json: client is NULL");
    client->stats = to_json(client->client->statistics().now());
    return absl::OkStatus();
  });
  return written == GRADRAIL_OK ? client->stats.c_str() : nullptr;
}

gradrail_status gradrail_barrier(gradrail_client* client, const char* name) {
  return guarded([&]() -> absl::Status {
    GRADRAIL_RETURN_IF_ERROR(check_client("gradrail_barrier", client));
    if (name == nullptr) return absl::InvalidArgumentError("gradrail_barrier: name is NULL");
    return client->client->barriers().wait(name);
  });
}

gradrail_status gradrail_save_checkpoint(gradrail_client* client) {
  return guarded([&]() -> absl::Status {
    GRADRAIL_RETURN_IF_ERROR(check_client("gradrail_save_checkpoint", client));
    return client->client->checkpoints().save().status();
  });
}

gradrail_status gradrail_begin_checkpoint(gradrail_client* client) {
  return guarded([&]() -> absl::Status {
    GRADRAIL_RETURN_IF_ERROR(check_client("gradrail_begin_checkpoint", client));
    return client->client->checkpoints().begin();
  });
}

gradrail_status gradrail_finish_checkpoint(gradrail_client* client) {
  return guarded([&]() -> absl::Status {
    GRADRAIL_RETURN_IF_ERROR(check_client("gradrail_finish_checkpoint", client));
    return client->client->checkpoints().finish().status();
  });
}

gradrail_status gradrail_finish_steps(gradrail_client* client) {
  return guarded([&]() -> absl::Status {
    GRADRAIL_RETURN_IF_ERROR(check_client("gradrail_finish_steps", client));
    GRADRAIL_RETURN_IF_ERROR(client->client->finish_steps());
    client->steps_finished = true;
    return absl::OkStatus();
  });
}

gradrail_status gradrail_give_up(gradrail_client* client, const char* reason) {
  return guarded([&]() -> absl::Status {
    GRADRAIL_RETURN_IF_ERROR(check_client("gradrail_give_up", client));
    client->left = client->gave_up = true;
    return client->client->give_up(reason == nullptr || *reason == '\0' ? "no reason given" : reason);
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

void gradrail_set_log(gradrail_log log, int least_level, void* context) {
  guarded([&] {
    gradrail::LogReceiver receiver;
    if (log != nullptr) receiver = [=](int level, const std::string& text) { log(level, text.c_str(), context); };
    gradrail::send_log_to(std::move(receiver), least_level);
    return absl::OkStatus();
  });
}

const char* gradrail_version(void) { return GRADRAIL_VERSION; }

const char* gradrail_last_error(void) { return last_error.c_str(); }
