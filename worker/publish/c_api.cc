// The C interface over Publisher and Subscriber: it checks arguments, translates texts, and stops exceptions.
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gradrail/publish.h"
#include "nlohmann/json.hpp"
#include "ps/protocol/security.h"
#include "worker/client/c_call.h"
#include "worker/client/c_options.h"
#include "worker/publish/publisher.h"
#include "worker/publish/subscriber.h"

struct gradrail_publisher {
  std::unique_ptr<gradrail::publish::Publisher> publisher;
};

struct gradrail_subscriber {
  std::unique_ptr<gradrail::publish::Subscriber> subscriber;
  std::vector<gradrail_tensor> tensors;  ///< tensors of the model, after gradrail_subscriber_connect
  std::string hash;
  std::string stats;
};

namespace gradrail::publish {
namespace {

thread_local std::string publisher_stats;  // one per thread: any thread may call a publisher

constexpr double kLongestTimeS = 1e9;  // 64 bits of nanoseconds end at 292 years

absl::StatusOr<Duration> duration_of(std::string_view call, std::string_view name, double seconds) {
  if (seconds >= 0 && seconds <= kLongestTimeS) return from_seconds(seconds);
  return absl::InvalidArgumentError(fmt::format("{}: {} {}: must be from 0 to {}", call, name, seconds, kLongestTimeS));
}

/// A text option; "" and NULL select the default.
std::string text_or(const char* text, std::string_view otherwise) {
  return std::string(text == nullptr || *text == '\0' ? otherwise : std::string_view(text));
}

absl::StatusOr<std::string> secret_of(const char* file) {
  if (file == nullptr) return std::string();
  return read_secret_file(file);
}

absl::Status check_arrays(std::string_view call, const float* const* arrays, size_t count, const Model& model) {
  if (count != model.schema().size())
    return absl::InvalidArgumentError(fmt::format("{}: {} arrays for {} tensors", call, count, model.schema().size()));
  for (size_t i = 0; i < count; ++i) {
    if (arrays == nullptr || arrays[i] == nullptr)
      return absl::InvalidArgumentError(fmt::format("{}: array {} is NULL", call, i));
  }
  return absl::OkStatus();
}

absl::Status open(const gradrail_publish_options* program, const gradrail_tensor* tensors, size_t count,
                  gradrail_publisher** out) {
  if (out == nullptr) return absl::InvalidArgumentError("gradrail_publisher_open: publisher is NULL");
  *out = nullptr;
  GRADRAIL_ASSIGN_OR_RETURN(
      const gradrail_publish_options given,
      worker::known_part(program, offsetof(gradrail_publish_options, format),
                         "gradrail_publisher_open: begin options with GRADRAIL_PUBLISH_OPTIONS_INIT"));
  PublisherOptions options{.insecure = given.insecure != 0};
  options.server.listen = text_or(given.listen, "127.0.0.1:0");
  GRADRAIL_ASSIGN_OR_RETURN(options.format, parse_format(text_or(given.format, "bf16")));
  GRADRAIL_ASSIGN_OR_RETURN(options.server.secret, secret_of(given.secret_file));
  if (given.keep != 0) options.keep = given.keep;
  if (given.max_readers != 0) options.server.max_readers = given.max_readers;
  if (given.reader_timeout_s != 0) {
    GRADRAIL_RETURN_IF_ERROR(
        duration_of("gradrail_publisher_open", "reader_timeout_s", given.reader_timeout_s).status());
    options.server.reader_timeout_s = given.reader_timeout_s;
  }
  GRADRAIL_ASSIGN_OR_RETURN(Schema schema, worker::to_schema("gradrail_publisher_open", tensors, count));
  GRADRAIL_ASSIGN_OR_RETURN(auto opened, Publisher::open(std::move(options), std::move(schema)));
  *out = new gradrail_publisher{.publisher = std::move(opened)};
  return absl::OkStatus();
}

absl::Status open(const gradrail_subscribe_options* program, gradrail_subscriber** out) {
  if (out == nullptr) return absl::InvalidArgumentError("gradrail_subscriber_open: subscriber is NULL");
  *out = nullptr;
  GRADRAIL_ASSIGN_OR_RETURN(
      const gradrail_subscribe_options given,
      worker::known_part(program, offsetof(gradrail_subscribe_options, follow),
                         "gradrail_subscriber_open: begin options with GRADRAIL_SUBSCRIBE_OPTIONS_INIT"));
  SubscriberOptions options{.address = text_or(given.address, ""), .insecure = given.insecure != 0};
  const std::string follow = text_or(given.follow, "newest");
  if (follow != "newest" && follow != "each")
    return absl::InvalidArgumentError(fmt::format("follow '{}': must be newest or each", escaped(follow)));
  options.follow = follow == "each" ? Follow::each : Follow::newest;
  GRADRAIL_ASSIGN_OR_RETURN(options.secret, secret_of(given.secret_file));
  if (given.silence_timeout_s != 0) {
    GRADRAIL_RETURN_IF_ERROR(
        duration_of("gradrail_subscriber_open", "silence_timeout_s", given.silence_timeout_s).status());
    options.silence_timeout_s = given.silence_timeout_s;
  }
  GRADRAIL_ASSIGN_OR_RETURN(auto opened, Subscriber::open(std::move(options)));
  *out = new gradrail_subscriber{.subscriber = std::move(opened), .tensors = {}, .hash = {}, .stats = {}};
  return absl::OkStatus();
}

absl::Status connect(gradrail_subscriber* subscriber, double timeout_s) {
  if (subscriber == nullptr) return absl::InvalidArgumentError("gradrail_subscriber_connect: subscriber is NULL");
  GRADRAIL_ASSIGN_OR_RETURN(const Duration timeout, duration_of("gradrail_subscriber_connect", "timeout_s", timeout_s));
  GRADRAIL_RETURN_IF_ERROR(subscriber->subscriber->connect(Clock::now() + timeout));
  subscriber->tensors.clear();
  for (const Tensor& tensor : subscriber->subscriber->model().schema())
    subscriber->tensors.push_back({tensor.name.c_str(), tensor.shape.data(), tensor.shape.size()});
  return absl::OkStatus();
}

absl::Status check_connected(std::string_view call, const gradrail_subscriber* subscriber) {
  if (subscriber == nullptr) return absl::InvalidArgumentError(fmt::format("{}: subscriber is NULL", call));
  if (!subscriber->tensors.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("{} before gradrail_subscriber_connect: the tensors are not known yet", call));
}

absl::Status next(gradrail_subscriber* subscriber, double timeout_s, uint64_t* version) {
  GRADRAIL_RETURN_IF_ERROR(check_connected("gradrail_subscriber_next", subscriber));
  if (version == nullptr) return absl::InvalidArgumentError("gradrail_subscriber_next: version is NULL");
  GRADRAIL_ASSIGN_OR_RETURN(const Duration timeout, duration_of("gradrail_subscriber_next", "timeout_s", timeout_s));
  GRADRAIL_RETURN_IF_ERROR(subscriber->subscriber->next(Clock::now() + timeout));
  *version = subscriber->subscriber->have()->version;
  return absl::OkStatus();
}

std::string to_json(const Subscriber& subscriber) {
  const SubscriberStats& stats = subscriber.stats();
  const nlohmann::json json = {{"full_versions", stats.full_count},
                               {"full_bytes", stats.full_bytes},
                               {"delta_versions", stats.delta_count},
                               {"delta_bytes", stats.delta_bytes},
                               {"connections", stats.connections},
                               {"hash_failures", stats.hash_failures},
                               {"last_lag_s", stats.last_lag_s},
                               {"last_verify_s", stats.last_verify_s},
                               {"run", fmt::format("{:016x}", subscriber.run())}};
  return json.dump();
}

}  // namespace
}  // namespace gradrail::publish

using namespace gradrail::publish;
using gradrail::worker::guarded;

gradrail_status gradrail_publisher_open(const gradrail_publish_options* options, const gradrail_tensor* tensors,
                                        size_t tensor_count, gradrail_publisher** publisher) {
  return guarded([&] { return open(options, tensors, tensor_count, publisher); });
}

const char* gradrail_publisher_address(const gradrail_publisher* publisher) {
  return publisher == nullptr ? nullptr : publisher->publisher->address().c_str();
}

gradrail_status gradrail_publisher_publish(gradrail_publisher* publisher, uint64_t version, const float* const* arrays,
                                           size_t array_count) {
  return guarded([&]() -> absl::Status {
    if (publisher == nullptr) return absl::InvalidArgumentError("gradrail_publisher_publish: publisher is NULL");
    GRADRAIL_RETURN_IF_ERROR(
        check_arrays("gradrail_publisher_publish", arrays, array_count, publisher->publisher->model()));
    return publisher->publisher->publish(version, {arrays, array_count});
  });
}

const char* gradrail_publisher_stats_json(gradrail_publisher* publisher) {
  const gradrail_status written = guarded([&]() -> absl::Status {
    if (publisher == nullptr) return absl::InvalidArgumentError("gradrail_publisher_stats_json: publisher is NULL");
    publisher_stats = publisher->publisher->stats_json();
    return absl::OkStatus();
  });
  return written == GRADRAIL_OK ? publisher_stats.c_str() : nullptr;
}

gradrail_status gradrail_publisher_close(gradrail_publisher* publisher, double wait_s) {
  return guarded([&]() -> absl::Status {
    if (publisher == nullptr) return absl::InvalidArgumentError("gradrail_publisher_close: publisher is NULL");
    GRADRAIL_ASSIGN_OR_RETURN(const gradrail::Duration wait, duration_of("gradrail_publisher_close", "wait_s", wait_s));
    publisher->publisher->close(wait);
    return absl::OkStatus();
  });
}

void gradrail_publisher_free(gradrail_publisher* publisher) { delete publisher; }

gradrail_status gradrail_subscriber_open(const gradrail_subscribe_options* options, gradrail_subscriber** subscriber) {
  return guarded([&] { return open(options, subscriber); });
}

gradrail_status gradrail_subscriber_connect(gradrail_subscriber* subscriber, double timeout_s) {
  return guarded([&] { return connect(subscriber, timeout_s); });
}

const gradrail_tensor* gradrail_subscriber_tensors(const gradrail_subscriber* subscriber, size_t* tensor_count) {
  const size_t count = subscriber == nullptr ? 0 : subscriber->tensors.size();
  if (tensor_count != nullptr) *tensor_count = count;
  return count == 0 ? nullptr : subscriber->tensors.data();
}

const char* gradrail_subscriber_format(const gradrail_subscriber* subscriber) {
  if (subscriber == nullptr || subscriber->tensors.empty()) return nullptr;
  return name_of(subscriber->subscriber->model().format()).data();
}

const void* gradrail_subscriber_bits(const gradrail_subscriber* subscriber, size_t tensor_index, size_t* bytes) {
  if (subscriber == nullptr || tensor_index >= subscriber->tensors.size()) return nullptr;
  const Model& model = subscriber->subscriber->model();
  if (bytes != nullptr) *bytes = model.offset(tensor_index + 1) - model.offset(tensor_index);
  return subscriber->subscriber->bits() + model.offset(tensor_index);
}

gradrail_status gradrail_subscriber_resume(gradrail_subscriber* subscriber, uint64_t version,
                                           const float* const* arrays, size_t array_count) {
  return guarded([&]() -> absl::Status {
    GRADRAIL_RETURN_IF_ERROR(check_connected("gradrail_subscriber_resume", subscriber));
    GRADRAIL_RETURN_IF_ERROR(
        check_arrays("gradrail_subscriber_resume", arrays, array_count, subscriber->subscriber->model()));
    subscriber->subscriber->resume(version, {arrays, array_count});
    return absl::OkStatus();
  });
}

gradrail_status gradrail_subscriber_next(gradrail_subscriber* subscriber, double timeout_s, uint64_t* version) {
  return guarded([&] { return next(subscriber, timeout_s, version); });
}

const char* gradrail_subscriber_hash(gradrail_subscriber* subscriber) {
  if (subscriber == nullptr || !subscriber->subscriber->have()) return nullptr;
  const gradrail_status written = guarded([&] {
    subscriber->hash = hex_of(subscriber->subscriber->have()->digest);
    return absl::OkStatus();
  });
  return written == GRADRAIL_OK ? subscriber->hash.c_str() : nullptr;
}

const char* gradrail_subscriber_stats_json(gradrail_subscriber* subscriber) {
  const gradrail_status written = guarded([&]() -> absl::Status {
    if (subscriber == nullptr) return absl::InvalidArgumentError("gradrail_subscriber_stats_json: subscriber is NULL");
    subscriber->stats = to_json(*subscriber->subscriber);
    return absl::OkStatus();
  });
  return written == GRADRAIL_OK ? subscriber->stats.c_str() : nullptr;
}

void gradrail_subscriber_free(gradrail_subscriber* subscriber) { delete subscriber; }
