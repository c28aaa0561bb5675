#pragma once

#include <memory>
#include <string>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "ps/protocol/control.grpc.pb.h"
#include "ps/protocol/exchange_layout.h"
#include "tests/worker/client/cluster.h"
#include "transport/context.h"

namespace gradrail::worker {

/// A worker made by hand, which can join properly and then do what no honest one does. It talks to the first shard of
/// the first ps. Its heartbeats continue until its destructor runs; it never leaves.
class RawWorker {
 public:
  RawWorker(const ClientOptions& options, const Schema& schema);
  ~RawWorker();

  absl::Status join();
  const ps::proto::JoinReply& joined() const { return reply_; }
  uint64_t incarnation() const { return incarnation_; }
  /// The shard's address over this transport.
  std::string address(const std::string& transport) const;

  /// Ends the control connection as a killed process does.
  void vanish();

  /// A data connection with its memory.
  struct Link {
    std::unique_ptr<transport::Context> context;
    SharedMemory memory[4];
    std::vector<std::unique_ptr<transport::MemoryRegion>> regions;  ///< parameters, gradients, returns, headers
    transport::Connection* connection = nullptr;
    transport::RemoteRegion slots{};

    /// Polls once.
    bool is_lost();
  };
  /// Hands the connection over, so that another can be made.
  Link take_link() { return std::move(link_); }

  /// Connects and sends JoinPath. `parameters_bytes` is what it registers, 0: as much as the model needs.
  struct Handshake {
    std::string transport = "tcp";
    std::string proof;  ///< "": its own
    uint32_t task_index = UINT32_MAX;
    size_t parameters_bytes = 0;
    size_t gradients_bytes = 0;
    bool parameters_writable = true;
  };
  /// How far an honest handshake goes.
  enum class Until { welcome, checked, active };
  /// "" or why the shard refused.
  absl::StatusOr<std::string> start_handshake(const Handshake& handshake, Until until = Until::active);
  /// Any first message instead.
  absl::StatusOr<std::string> handshake_with(const std::string& transport, const std::string& message);
  /// The proof of the last JoinPath.
  const std::string& last_proof() const { return last_proof_; }
  /// Any message at any time.
  void say(const ps::proto::ToShard& message);
  /// The pattern that goes over a new path first; `seed` is the one of the JoinPath unless the worker lies.
  void put_check(uint64_t seed);
  static constexpr uint64_t kCheckSeed = 42;

  /// A header that an honest worker would send for its first push of `bucket`; the payload is zeros.
  ps::SlotHeader header(uint32_t bucket, uint64_t payload_bytes) const;
  void push(const ps::SlotHeader& header, uint64_t immediate);
  /// The last message of the shard: the reason of the refusal, or of the end of the connection. "" after the limit.
  std::string refusal_reason(Duration limit = 10s);

 private:
  absl::Status open(const std::string& transport);
  void put(size_t bytes, uint64_t offset, uint64_t immediate);  ///< from the start of its headers
  /// The next message or put of the shard; INVALID_ARGUMENT when it is a refusal.
  absl::Status await_next(const std::function<bool(const ps::proto::ToWorker*)>& is_it);

  const ClientOptions options_;
  const Schema schema_;
  const uint64_t incarnation_;
  std::unique_ptr<ps::proto::Control::Stub> stub_;
  ps::proto::JoinReply reply_;
  std::unique_ptr<grpc::ClientContext> heartbeat_context_;
  std::atomic<bool> beats_ = false;
  std::thread heartbeat_;

  Link link_;
  std::string last_proof_;
};

}  // namespace gradrail::worker
