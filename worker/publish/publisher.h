#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "worker/publish/server.h"
#include "worker/publish/version_store.h"

namespace gradrail::publish {

struct PublisherOptions {
  ServerOptions server;
  Format format = Format::bf16;
  uint32_t keep = 8;      ///< versions from which a reader can continue
  bool insecure = false;  ///< allows an address beyond this host without a secret
};

/// Publishes versions of the parameters of a process to any number of readers.
/// Threads  Any. Two threads may hash and send: one encodes versions, one serves readers.
class Publisher {
 public:
  /// Errors  INVALID_ARGUMENT: options or schema. FAILED_PRECONDITION: an address beyond this host without a secret.
  ///         Those of Server::start().
  static absl::StatusOr<std::unique_ptr<Publisher>> open(PublisherOptions options, Schema schema);
  ~Publisher();
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;

  const std::string& address() const { return server_->address(); }
  const Model& model() const { return store_.model(); }

  /// Copies the parameters as a new version. It waits for no reader and no encoder; it takes the time of one copy.
  /// Shapes  arrays: one for each tensor, in the order of the schema.
  /// Errors  INVALID_ARGUMENT: the version is not more than the last one. RESOURCE_EXHAUSTED: memory.
  ///         FAILED_PRECONDITION: after close().
  absl::Status publish(uint64_t version, absl::Span<const float* const> arrays);

  /// Lets readers receive the last version, for `wait` at most, and reports the end. A second call has no effect.
  void close(Duration wait);

  /// Counters as JSON.
  std::string stats_json() const;

 private:
  Publisher(Model model, uint32_t keep) : store_(std::move(model), keep) {}

  VersionStore store_;
  std::unique_ptr<Server> server_;
  std::thread encoder_;
  mutable Mutex publishing_;  ///< serializes publish() and close()
  bool closed_ ABSL_GUARDED_BY(publishing_) = false;
};

}  // namespace gradrail::publish
