#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/file_descriptor.h"
#include "base/rate_limited_log.h"
#include "gradrail/clock.h"
#include "ps/admission/connection_proof.h"

namespace gradrail::ps {

/// Listens in front of a gRPC server and passes on the connections that prove the job's secret. gRPC 1.51 cannot bound
/// the memory of a peer that sends endless headers or opens endless streams (1 GB within 5 s were measured). Here a
/// connection has at most 2 KiB before its proof (gate_text.h). Without a secret each connection
/// without a proof passes. gRPC's client sends CONNECT itself, as to a proxy.
/// Threads  The gate owns one thread.
class AdmissionGate {
 public:
  struct Options {
    std::string secret;                          ///< secret of the job; "": none
    Duration timeout = std::chrono::seconds(3);  ///< time limit for the request of a connection
    size_t max_pending = 256;                    ///< connections without a request; beyond, the oldest is closed
    /// The kernel ends an admitted connection if its host acknowledges nothing for so long and 2 s; 0: it does not.
    Duration vanish_timeout = Duration::zero();
  };
  /// Gets each admitted connection, in non-blocking mode.
  using Admit = std::function<void(FileDescriptor)>;

  /// Binds `address` ("host:port"; port 0: any). Connections wait until start().
  /// Errors  ALREADY_EXISTS: the port is in use. NOT_FOUND: the address is not one of this host. RESOURCE_EXHAUSTED: as
  ///         kernel_refusal(). FAILED_PRECONDITION: another reason. INVALID_ARGUMENT: not an address.
  static absl::StatusOr<std::unique_ptr<AdmissionGate>> listen(const std::string& address, Options options);
  /// No call of Admit follows.
  ~AdmissionGate();

  uint16_t port() const { return port_; }
  /// Errors  RESOURCE_EXHAUSTED: the kernel refused a thread.
  absl::Status start(Admit admit);

 private:
  struct Pending {
    FileDescriptor socket;
    std::string request;
    TimePoint deadline;
  };
  AdmissionGate(Options options, std::vector<FileDescriptor> listeners, uint16_t port, FileDescriptor stop);
  void run();
  void accept_all(int listener);
  /// Whether the connection stays pending.
  bool receive(Pending& pending);
  /// Answers a whole request.
  void answer(Pending& pending);
  void report_refusal(const Pending& pending, const absl::Status& why);

  const Options options_;
  const std::vector<FileDescriptor> listeners_;
  const uint16_t port_;
  const FileDescriptor stop_;  ///< eventfd
  ConnectionChecker checker_;
  Admit admit_;
  // The thread.
  std::vector<Pending> pending_;  ///< connections in the order of their deadlines
  RateLimitedLog rate_limited_log_;
  std::thread thread_;  ///< last
};

}  // namespace gradrail::ps
