#include "worker/publish/publisher.h"

#include <chrono>

#include "base/resource_limits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "ps/protocol/security.h"

namespace gradrail::publish {

namespace {

uint64_t unix_ns() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Publisher>> Publisher::open(PublisherOptions options, Schema schema) {
  GRADRAIL_ASSIGN_OR_RETURN(Model model, Model::create(options.format, std::move(schema)));
  if (options.keep < 1) return absl::InvalidArgumentError("keep 0: must be at least 1");
  const Security security{.secret = options.server.secret, .insecure = options.insecure};
  if (!ps::check_exposure(security, options.server.listen).ok()) {
    return absl::FailedPreconditionError(fmt::format(
        "publisher at {} is reachable from other hosts without authentication: set secret_file, or insecure "
        "in a trusted network",
        options.server.listen));
  }
  std::unique_ptr<Publisher> publisher(new Publisher(std::move(model), options.keep));
  GRADRAIL_ASSIGN_OR_RETURN(publisher->server_, Server::start(std::move(options.server), publisher->store_));
  GRADRAIL_ASSIGN_OR_RETURN(publisher->encoder_, start_thread("that encodes versions", [raw = publisher.get()] {
                              raw->store_.prepare();
                              while (raw->store_.encode_next()) raw->server_->notify();
                            }));
  return publisher;
}

Publisher::~Publisher() { close(Duration::zero()); }

absl::Status Publisher::publish(uint64_t version, absl::Span<const float* const> arrays) {
  const uint64_t start = unix_ns();
  const MutexLock lock(publishing_);
  if (closed_) return absl::FailedPreconditionError("publish after close: open another publisher");
  const size_t tensors = model().schema().size();
  if (arrays.size() != tensors)
    return absl::InvalidArgumentError(fmt::format("publish: {} arrays for {} tensors", arrays.size(), tensors));
  GRADRAIL_RETURN_IF_ERROR(store_.check_number(version));
  GRADRAIL_ASSIGN_OR_RETURN(std::shared_ptr<std::byte[]> bits, store_.new_bits());
  store_.model().to_bits(arrays, bits.get());
  store_.add(version, start, std::move(bits));
  return absl::OkStatus();
}

void Publisher::close(Duration wait) {
  const MutexLock lock(publishing_);
  if (closed_) return;
  closed_ = true;
  const TimePoint deadline = Clock::now() + wait;
  if (encoder_.joinable()) {
    store_.wait_encoded(deadline);
    store_.stop();
    encoder_.join();
  }
  if (server_ != nullptr) server_->finish(deadline);
}

std::string Publisher::stats_json() const {
  const StoreStats store = store_.stats();
  const ServerStats server = server_->stats();
  nlohmann::json json = {{"format", name_of(model().format())},
                         {"model_bytes", model().bytes()},
                         {"published", store.published},
                         {"superseded", store.superseded},
                         {"kept", store.kept},
                         {"kept_delta_bytes", store.kept_delta_bytes},
                         {"last_delta_bytes", store.last_delta_bytes},
                         {"last_encode_s", store.last_encode_s},
                         {"readers", server.readers},
                         {"readers_lost", server.readers_lost},
                         {"full_versions_sent", server.sent.full_count},
                         {"full_bytes_sent", server.sent.full_bytes},
                         {"delta_versions_sent", server.sent.delta_count},
                         {"delta_bytes_sent", server.sent.delta_bytes}};
  if (store.newest) json["newest"] = {{"version", store.newest->version}, {"hash", hex_of(store.newest->digest)}};
  return json.dump();
}

}  // namespace gradrail::publish
