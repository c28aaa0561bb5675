#include "launch/rendezvous/rank_join.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <string_view>
#include <thread>

#include "base/status.h"
#include "fmt/format.h"
#include "gradrail/cluster.h"
#include "launch/rendezvous/rendezvous.grpc.pb.h"
#include "ps/admission/channel.h"
#include "ps/protocol/control_status.h"

namespace gradrail::launch {
namespace {

constexpr auto kBetweenTries = std::chrono::milliseconds(100);
constexpr auto kOneTry = std::chrono::seconds(5);

class ClientStream final : public ReactorStream<grpc::ClientBidiReactor<proto::RankMessage, proto::RankMessage>> {
 public:
  explicit ClientStream(const std::shared_ptr<grpc::Channel>& channel) : stub_(channel) {
    stub_.async()->Join(&context_, this);
    AddHold();  // held until close() or release(): reads and writes start outside of callbacks, too
    StartRead(&incoming_);
    StartCall();
  }

  void OnReadInitialMetadataDone(bool ok) override {
    const MutexLock lock(mutex_);
    answered_ = ok;
    changed_.notify_all();
  }
  void OnDone(const grpc::Status& status) override {
    note_done(absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message()));
  }

  /// Waits for the answer of a server. Errors  Those of gRPC.
  absl::Status wait_answered(TimePoint deadline) {
    MutexLock lock(mutex_);
    while (!answered_ && !done_)
      if (!changed_.wait_until(lock, deadline) && !answered_ && !done_) return absl::DeadlineExceededError("no answer");
    return answered_ ? absl::OkStatus() : why_;
  }
  std::string peer_host() const { return host_of_peer(context_.peer()); }

 protected:
  void close(const absl::Status&) override {
    context_.TryCancel();
    RemoveHold();
  }
  void release() override { RemoveHold(); }
  void cancel() override { context_.TryCancel(); }

 private:
  proto::Rendezvous::Stub stub_;
  grpc::ClientContext context_;
  bool answered_ ABSL_GUARDED_BY(mutex_) = false;
};

absl::StatusOr<std::shared_ptr<grpc::Channel>> open_rank_channel(const std::string& address, const std::string& secret,
                                                                 int max_message_bytes, Duration timeout) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(max_message_bytes);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kOneTry / std::chrono::milliseconds(1));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kRankPingMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kRankPingTimeoutMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // no limit
  return ps::open_channel(address, grpc::InsecureChannelCredentials(), secret, std::move(arguments), timeout);
}

}  // namespace

absl::StatusOr<RankStreamPtr> join_first_rank(const std::string& address, const std::string& secret,
                                              proto::RankHello hello, TimePoint deadline, int max_message_bytes,
                                              const std::function<void(const std::string&)>& say) {
  GRADRAIL_RETURN_IF_ERROR(parse_host_port(address).status());
  const std::string first = fmt::format("the first task of {} at {}", hello.job(), address);
  TimePoint progress = Clock::now() + kRankProgress;
  while (true) {
    const TimePoint try_ends = std::min(deadline, Clock::now() + kOneTry);
    absl::StatusOr<std::shared_ptr<grpc::Channel>> channel =
        open_rank_channel(address, secret, max_message_bytes, try_ends - Clock::now());
    absl::Status answered = channel.status();
    std::unique_ptr<ClientStream, EndRankStream> stream;
    if (channel.ok()) {
      stream.reset(new ClientStream(*channel));
      stream->set_peer_name(first);
      answered = stream->wait_answered(try_ends);
    }
    if (answered.ok()) {
      hello.set_first_address(stream->peer_host());
      proto::RankMessage message;
      *message.mutable_hello() = std::move(hello);
      GRADRAIL_RETURN_IF_ERROR(stream->send(std::move(message), Clock::now() + kOneTry));
      return RankStreamPtr(stream.release());
    }
    // The cause is another version, or a server of another kind: a later attempt has the same result.
    if (absl::IsFailedPrecondition(answered))
      return absl::FailedPreconditionError(fmt::format("{}: {}", first, message_of(answered)));
    const std::string cause =
        fmt::format("no process listens at {} ({})", address, ps::connection_cause(message_of(answered)));
    if (Clock::now() + kBetweenTries > deadline)
      return absl::DeadlineExceededError(
          fmt::format("the first task of {} did not start in time: {}", hello.job(), cause));
    if (Clock::now() > progress) {
      say(fmt::format("waiting for the first task of {}: {}", hello.job(), cause));
      progress += kRankProgress;
    }
    std::this_thread::sleep_for(kBetweenTries);
  }
}

}  // namespace gradrail::launch
