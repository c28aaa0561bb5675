#include "launch/rendezvous/rendezvous.h"

#include "base/status.h"
#include "fmt/format.h"
#include "gradrail/cluster.h"
#include "launch/rendezvous/rank_join.h"
#include "launch/rendezvous/rank_server.h"

namespace gradrail::launch {
namespace {

using proto::RankMessage;

constexpr Duration kSend = std::chrono::seconds(2);
// Longer than the first task waits: its error, which names the missing tasks, arrives first.
constexpr Duration kLonger = std::chrono::seconds(10);

proto::RankHello hello_from(const RendezvousRequest& request) {
  const Launch& launch = request.launch;
  proto::RankHello hello = hello_of(launch.job, launch.rank, launch.size, request.ps_count);
  hello.set_backup_ps(request.backup_ps);
  hello.set_address(request.bind_host);
  return hello;
}

/// The task to which all others connect: ps/0.
class FirstTask final : public Rendezvous {
 public:
  explicit FirstTask(const RendezvousRequest& request)
      : request_(request),
        primaries_(request.backup_ps ? request.ps_count / 2 : request.ps_count),
        ports_(request.ps_count, 0) {}

  absl::Status gather() {
    GRADRAIL_ASSIGN_OR_RETURN(server_, RankServer::gather({.address = request_.launch.rendezvous,
                                                           .secret = request_.secret,
                                                           .hello = hello_from(request_),
                                                           .timeout = request_.timeout,
                                                           .say = request_.say}));
    deadline_ = Clock::now() + request_.timeout;
    assignment_ = server_->assignments().assignment_of(0);
    for (uint32_t rank = 1; rank < request_.launch.size; ++rank) {
      RankMessage message;
      *message.mutable_assignment() = server_->assignments().assignment_of(rank);
      const absl::Status sent = server_->streams()[rank]->send(message, Clock::now() + kSend);
      // The ps awaits a worker that has ended already, as any other.
      if (rank < request_.ps_count) GRADRAIL_RETURN_IF_ERROR(sent);
    }
    return absl::OkStatus();
  }

  absl::Status publish(uint16_t port) override {
    ports_[0] = port;
    GRADRAIL_RETURN_IF_ERROR(receive_ports(1, primaries_));
    send_addresses(request_.ps_count, request_.launch.size);
    server_.reset();  // tasks find the ps by address from here on
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::string>> ps_addresses() override {
    GRADRAIL_RETURN_IF_ERROR(receive_ports(primaries_, request_.ps_count));
    send_addresses(1, primaries_);
    return addresses();
  }

 private:
  /// Waits for the ports of the ps tasks from `begin` to `end`.
  absl::Status receive_ports(uint32_t begin, uint32_t end) {
    for (uint32_t rank = begin; rank < end; ++rank) {
      const absl::StatusOr<RankMessage> received = server_->streams()[rank]->receive(RankMessage::kPort, deadline_);
      if (!received.ok())
        return absl::UnavailableError(fmt::format("no port of ps/{}: {}", rank, message_of(received.status())));
      ports_[rank] = received->port();
    }
    return absl::OkStatus();
  }

  std::vector<std::string> addresses() const {
    std::vector<std::string> all;
    for (size_t i = 0; i < ports_.size(); ++i)
      all.push_back(
          to_string({.host = assignment_.ps_hosts(static_cast<int>(i)), .port = static_cast<uint16_t>(ports_[i])}));
    return all;
  }

  /// To the ranks from `begin` to `end`.
  void send_addresses(uint32_t begin, uint32_t end) {
    RankMessage message;
    for (std::string& address : addresses()) message.mutable_ps_addresses()->add_addresses(std::move(address));
    // The wait for a task that has ended already is the same as for any other.
    for (uint32_t rank = begin; rank < end; ++rank)
      server_->streams()[rank]->send(message, Clock::now() + kSend).IgnoreError();
  }

  const RendezvousRequest request_;
  const uint32_t primaries_;     ///< ps tasks without those that are backups
  std::vector<uint32_t> ports_;  ///< indexed by ps task; 0: not known yet
  TimePoint deadline_;           ///< limit for all ports: the other tasks wait from the same time on
  std::unique_ptr<RankServer> server_;
};

/// All other tasks.
class OtherTask final : public Rendezvous {
 public:
  explicit OtherTask(const RendezvousRequest& request) : request_(request) {}

  absl::Status arrive() {
    const TimePoint deadline = Clock::now() + request_.timeout;
    GRADRAIL_ASSIGN_OR_RETURN(stream_, join_first_rank(request_.launch.rendezvous, request_.secret,
                                                       hello_from(request_), deadline, request_.say));
    GRADRAIL_ASSIGN_OR_RETURN(RankMessage answer, stream_->receive(RankMessage::kAssignment, deadline + kLonger));
    assignment_ = std::move(*answer.mutable_assignment());
    // The index of a task selects an element of these lists later.
    const bool has_all = assignment_.ps_hosts_size() == static_cast<int>(request_.ps_count) &&
                         assignment_.worker_hosts_size() == static_cast<int>(request_.launch.size - request_.ps_count);
    return has_all ? absl::OkStatus() : malformed();
  }

  absl::Status publish(uint16_t port) override {
    RankMessage message;
    message.set_port(port);
    return stream_->send(message, Clock::now() + request_.timeout);
  }

  absl::StatusOr<std::vector<std::string>> ps_addresses() override {
    GRADRAIL_ASSIGN_OR_RETURN(const RankMessage answer,
                              stream_->receive(RankMessage::kPsAddresses, Clock::now() + request_.timeout + kLonger));
    const auto& list = answer.ps_addresses().addresses();
    if (list.size() != static_cast<int>(request_.ps_count)) return malformed();
    return std::vector<std::string>(list.begin(), list.end());
  }

 private:
  absl::Status malformed() const {
    return absl::UnavailableError(
        fmt::format("the first task at {} sent a malformed message", request_.launch.rendezvous));
  }

  const RendezvousRequest request_;
  RankStreamPtr stream_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Rendezvous>> Rendezvous::join(const RendezvousRequest& request) {
  if (request.launch.rank == 0) {
    auto first = std::make_unique<FirstTask>(request);
    GRADRAIL_RETURN_IF_ERROR(first->gather());
    return first;
  }
  auto other = std::make_unique<OtherTask>(request);
  GRADRAIL_RETURN_IF_ERROR(other->arrive());
  return other;
}

}  // namespace gradrail::launch
