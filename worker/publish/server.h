#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/file_descriptor.h"
#include "base/mutex.h"
#include "base/rate_limited_log.h"
#include "worker/publish/reader_link.h"
#include "worker/publish/version_store.h"

namespace gradrail::publish {

struct ServerOptions {
  std::string listen;  ///< "host:port"; port 0: any
  std::string secret;  ///< "": none
  uint32_t max_readers = 256;
  double reader_timeout_s = 30.0;  ///< a reader that receives nothing of its version for so long is disconnected
};

struct ServerStats {
  uint64_t readers = 0;       ///< connected now
  uint64_t readers_lost = 0;  ///< readers that the publisher disconnected
  ReaderTotals sent;
};

/// Sends the versions of a store to readers in a dedicated thread.
/// Threads  Any, but finish() once.
class Server {
 public:
  /// Errors  INVALID_ARGUMENT: not an address. ALREADY_EXISTS: the address is in use. UNAVAILABLE: not an address of
  ///         this host.
  static absl::StatusOr<std::unique_ptr<Server>> start(ServerOptions options, const VersionStore& store);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// "host:port" of the socket that listens.
  const std::string& address() const { return address_; }
  /// Identifies this publisher process.
  uint64_t run() const { return run_; }
  /// The store has a further version.
  void notify();
  /// Lets readers receive the newest version until the deadline, reports the end to each, and ends the thread.
  void finish(TimePoint deadline);
  ServerStats stats() const;

 private:
  Server(ServerOptions options, const VersionStore& store, FileDescriptor listener, Pipe wake);

  void serve();
  void wait_for_events(int limit_ms);
  void accept_readers();
  /// Reads, answers and writes for one reader. False: close it.
  bool serve_one(ReaderLink& reader);
  /// Reports the end to readers that have the newest version. Whether all readers have left.
  bool finish_readers();

  const ServerOptions options_;
  const VersionStore& store_;
  FileDescriptor listener_;  ///< closed by finish(): the address is free then
  const Pipe wake_;          ///< a byte for each notice; both ends do not block
  const std::string address_;
  const uint64_t run_;

  std::vector<std::unique_ptr<ReaderLink>> readers_;  ///< server thread
  RateLimitedLog rate_limited_log_;

  mutable Mutex mutex_;
  ServerStats stats_ ABSL_GUARDED_BY(mutex_);
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  TimePoint finish_by_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;
};

}  // namespace gradrail::publish
