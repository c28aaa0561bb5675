#include "launch/rendezvous/rendezvous.h"

#include "base/status.h"
#include "fmt/format.h"
#include "launch/rendezvous/rank_join.h"
#include "launch/rendezvous/rank_server.h"

namespace gradrail::launch {
namespace {

using proto::RankMessage;
using Role = Launch::Role;

constexpr Duration kSend = std::chrono::seconds(2);
// Longer than the first task waits: its error, which names the missing tasks, arrives first.
constexpr Duration kLonger = std::chrono::seconds(10);

proto::RankHello hello_from(const RendezvousRequest& request) {
  const Launch& launch = request.launch;
  proto::RankHello hello = hello_of(launch.job, launch.size, request.ps_count);
  if (launch.role != Role::by_rank) hello.set_role(launch.role == Role::ps ? "ps" : "worker");
  if (launch.rank) hello.set_rank(*launch.rank);
  hello.set_backup_ps(request.backup_ps);
  hello.set_address(request.bind_host);
  return hello;
}

/// The task to which all others connect: ps/0, or the scheduler.
class FirstTask final : public Rendezvous {
 public:
  explicit FirstTask(const RendezvousRequest& request)
      : request_(request),
        primaries_(request.backup_ps ? request.ps_count / 2 : request.ps_count),
        ports_(request.ps_count, 0) {}

  absl::Status gather() {
    const bool has_own_task = request_.launch.role == Role::by_rank;
    absl::StatusOr<std::unique_ptr<RankServer>> server = RankServer::gather({.address = request_.launch.rendezvous,
                                                                             .secret = request_.secret,
                                                                             .hello = hello_from(request_),
                                                                             .has_own_task = has_own_task,
                                                                             .timeout = request_.timeout,
                                                                             .say = request_.say});
    if (!server.ok()) return server.status();
    server_ = *std::move(server);
    deadline_ = Clock::now() + request_.timeout;
    for (const RankServer::JoinedRank& joined : server_->joined()) {
      RankMessage message;
      *message.mutable_assignment() = server_->assignments().assignment_of(joined.task);
      const absl::Status sent = joined.stream->send(std::move(message), Clock::now() + kSend);
      // The ps awaits a worker that has ended already, as any other.
      if (joined.task.job == "ps") GRADRAIL_RETURN_IF_ERROR(sent);
    }
    if (has_own_task) assignment_ = server_->assignments().assignment_of({"ps", 0});
    return absl::OkStatus();
  }

  absl::Status publish(uint16_t port) override {
    // The scheduler, which needs no addresses itself, has not requested them.
    if (request_.backup_ps && !backups_listen_) GRADRAIL_RETURN_IF_ERROR(ps_addresses().status());
    // The scheduler receives the port of ps/0 as those of the others.
    ports_[0] = port;
    GRADRAIL_RETURN_IF_ERROR(receive_ports(0, primaries_));
    for (const RankServer::JoinedRank& joined : server_->joined()) {
      if (joined.task.job == "worker") send_addresses(joined);
    }
    server_.reset();  // tasks find the ps by address from here on
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::string>> ps_addresses() override {
    GRADRAIL_RETURN_IF_ERROR(receive_ports(primaries_, request_.ps_count));
    backups_listen_ = true;
    for (const RankServer::JoinedRank& joined : server_->joined()) {
      if (joined.task.job == "ps" && joined.task.index < primaries_) send_addresses(joined);
    }
    return addresses();
  }

 private:
  /// Waits for the ports of the ps tasks from `begin` to `end`.
  absl::Status receive_ports(uint32_t begin, uint32_t end) {
    for (const RankServer::JoinedRank& joined : server_->joined()) {
      if (joined.task.job != "ps" || joined.task.index < begin || joined.task.index >= end) continue;
      const absl::StatusOr<RankMessage> received = joined.stream->receive(RankMessage::kPort, deadline_);
      if (!received.ok())
        return absl::UnavailableError(
            fmt::format("no port of ps/{}: {}", joined.task.index, message_of(received.status())));
      ports_[joined.task.index] = received->port();
    }
    return absl::OkStatus();
  }

  std::vector<std::string> addresses() const {
    const auto hosts = server_->assignments().assignment_of({"ps", 0}).ps_hosts();
    std::vector<std::string> all;
    for (size_t i = 0; i < ports_.size(); ++i)
      all.push_back(to_string({.host = hosts[static_cast<int>(i)], .port = static_cast<uint16_t>(ports_[i])}));
    return all;
  }

  void send_addresses(const RankServer::JoinedRank& joined) {
    RankMessage message;
    for (std::string& address : addresses()) message.mutable_ps_addresses()->add_addresses(std::move(address));
    // The wait for a task that has ended already is the same as for any other.
    joined.stream->send(std::move(message), Clock::now() + kSend).IgnoreError();
  }

  const RendezvousRequest request_;
  const uint32_t primaries_;     ///< ps tasks without those that are backups
  std::vector<uint32_t> ports_;  ///< indexed by ps task; 0: not known yet
  bool backups_listen_ = false;
  TimePoint deadline_;  ///< limit for all ports: the other tasks wait from the same time on
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
    // The index selects an element of these lists later.
    const int tasks = assignment_.job() == "ps" ? assignment_.ps_hosts_size() : assignment_.worker_hosts_size();
    return static_cast<int64_t>(assignment_.index()) < tasks ? absl::OkStatus() : malformed();
  }

  absl::Status publish(uint16_t port) override {
    RankMessage message;
    message.set_port(port);
    return stream_->send(std::move(message), Clock::now() + request_.timeout);
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
  const Launch& launch = request.launch;
  if (launch.role == Role::scheduler || (launch.role == Role::by_rank && launch.rank == 0u)) {
    auto first = std::make_unique<FirstTask>(request);
    GRADRAIL_RETURN_IF_ERROR(first->gather());
    return first;
  }
  auto other = std::make_unique<OtherTask>(request);
  GRADRAIL_RETURN_IF_ERROR(other->arrive());
  return other;
}

}  // namespace gradrail::launch
