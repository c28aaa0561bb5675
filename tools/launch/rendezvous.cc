#include "tools/launch/rendezvous.h"

#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "ps/protocol/json_link.h"
#include "tools/launch/assignment_table.h"

namespace gradrail::tools {
namespace {

using nlohmann::json;
using ps::JsonLink;
using ps::JsonListener;

constexpr Duration kHello = std::chrono::seconds(2);  // sent at once; a silent task makes the others wait
constexpr Duration kProgressInterval = std::chrono::seconds(10);
constexpr uint32_t kHelloBytes = 16 << 10;  // an unauthenticated connection gets no more memory

std::vector<std::string> with_ports(const std::vector<std::string>& hosts, const std::vector<uint16_t>& ports) {
  std::vector<std::string> addresses;
  for (size_t i = 0; i < hosts.size(); ++i) addresses.push_back(ps::to_string({.host = hosts[i], .port = ports[i]}));
  return addresses;
}

/// The task to which all others connect: ps/0, or the scheduler.
class RendezvousServer final : public Rendezvous {
 public:
  explicit RendezvousServer(const RendezvousRequest& request)
      : request_(request), ours_(hello_of(request)), assignments_(ours_.size, ours_.ps_count) {}

  absl::Status gather();
  absl::Status publish(uint16_t port) override;
  absl::StatusOr<std::vector<std::string>> ps_addresses() override {
    return absl::FailedPreconditionError("only workers ask for addresses");
  }

 private:
  struct JoinedTask {
    JsonLink link;
    ps::TaskId task;
  };
  bool has_own_task() const { return ours_.role == ps::Launch::Role::by_rank; }
  absl::StatusOr<JsonListener> listen() const;
  absl::Status admit(JsonLink link);
  absl::Status assign_all();
  std::string waiting_for() const {
    return fmt::format("{} of {} at {}", fmt::join(assignments_.missing(), ", "), ours_.job,
                       request_.launch.rendezvous);
  }

  const RendezvousRequest request_;
  const RankHello ours_;
  AssignmentTable assignments_;
  std::vector<JoinedTask> joined_tasks_;
};

absl::StatusOr<JsonListener> RendezvousServer::listen() const {
  const ps::HostPort meet = ps::parse_host_port(request_.launch.rendezvous).value_or(ps::HostPort{});
  // A host's own name may be an address of no other host: any will do, unless all are here.
  const bool loopback = meet.host.starts_with("127.") || meet.host == "::1" || meet.host == "localhost";
  absl::StatusOr<JsonListener> both = JsonListener::open(ps::to_string({loopback ? meet.host : "::", meet.port}));
  if (both.ok()) return both;
  absl::StatusOr<JsonListener> listener =  // of a host without IPv6
      JsonListener::open(ps::to_string({loopback ? meet.host : "0.0.0.0", meet.port}));
  if (listener.ok()) return listener;
  return absl::FailedPreconditionError(fmt::format(
      "{}: where the tasks of {} were to meet; choose another port for all of them with --rendezvous tcp://HOST:PORT",
      message_of(listener.status()), ours_.job));
}

/// Errors  FAILED_PRECONDITION: a task of the job does not fit; other connections are merely closed.
absl::Status RendezvousServer::admit(JsonLink link) {
  const absl::StatusOr<json> message = link.receive(Clock::now() + kHello, kHelloBytes);
  const std::optional<RankHello> hello = message.ok() ? hello_from(*message) : std::nullopt;
  if (!hello) return absl::OkStatus();
  const auto refuse = [&](const std::string& why) {
    link.send({{"refused", why}}, Clock::now() + kHello).IgnoreError();
    return why;
  };
  // Two jobs with one port on one host: the other job has to change, and this one waits for its own tasks.
  if (hello->job != ours_.job) {
    refuse(fmt::format(
        "here the tasks of {} meet, this one is of {}: give one of the two jobs another --rendezvous tcp://HOST:PORT",
        ours_.job, hello->job));
    return absl::OkStatus();
  }
  std::string why;
  if (hello->ps_count != ours_.ps_count)
    why = fmt::format("--ps {} there, --ps {} here", hello->ps_count, ours_.ps_count);
  if (hello->size != ours_.size) why = fmt::format("it has {} tasks, the first one has {}", hello->size, ours_.size);
  if (hello->version != ours_.version) why = fmt::format("it is {}, the first one {}", hello->version, ours_.version);
  // A task of this job with other flags never fits, so the wait for it would be in vain.
  if (!why.empty()) return absl::FailedPreconditionError(fmt::format("{}: {}", name_of(*hello), refuse(why)));
  // The address at which the joining task reached this host: other tasks can use it as well.
  if (has_own_task() && request_.bind_host.empty()) assignments_.set_first_ps_address(link.local_host());
  const absl::StatusOr<ps::TaskId> task = assignments_.take(*hello);
  if (task.ok()) {
    joined_tasks_.push_back({std::move(link), *task});
  } else {
    request_.say(fmt::format("{} was sent away: {}", name_of(*hello), refuse(std::string(message_of(task.status())))));
  }
  return absl::OkStatus();
}

absl::Status RendezvousServer::assign_all() {
  for (JoinedTask& joined : joined_tasks_) {
    // A worker that is gone already is awaited by the ps, as any other.
    const absl::Status sent = joined.link.send(to_json(assignments_.assignment_of(joined.task)), Clock::now() + kHello);
    if (!sent.ok() && joined.task.job == "ps")
      return absl::UnavailableError(fmt::format("ps/{} {}", joined.task.index, message_of(sent)));
  }
  if (has_own_task()) assignment_ = assignments_.assignment_of({"ps", 0});
  return absl::OkStatus();
}

absl::Status RendezvousServer::gather() {
  absl::StatusOr<JsonListener> listener = listen();
  if (!listener.ok()) return listener.status();
  if (has_own_task()) GRADRAIL_RETURN_IF_ERROR(assignments_.take(ours_).status());
  const TimePoint deadline = Clock::now() + request_.timeout;
  // A scheduler has no task of its own: all tasks connect to it.
  const size_t expected = ours_.size - (has_own_task() ? 1 : 0);
  while (joined_tasks_.size() < expected) {
    const bool over = Clock::now() >= deadline;
    // The wait ends at intervals, so that a user sees which tasks are missing.
    absl::StatusOr<JsonLink> link = listener->accept(std::min(deadline, Clock::now() + kProgressInterval));
    if (link.ok()) {
      GRADRAIL_RETURN_IF_ERROR(admit(*std::move(link)));
    } else if (over) {
      return absl::DeadlineExceededError(
          fmt::format("{} did not come within {} s", waiting_for(), request_.timeout / std::chrono::seconds(1)));
    } else {
      request_.say(fmt::format("waiting for {}", waiting_for()));
    }
  }
  return assign_all();
}

absl::Status RendezvousServer::publish(uint16_t port) {
  const TimePoint deadline = Clock::now() + request_.timeout;
  // The own port stands at index 0; those of the other ps replace the rest.
  std::vector<uint16_t> ports(ours_.ps_count, port);
  for (JoinedTask& joined : joined_tasks_) {
    if (joined.task.job != "ps") continue;
    const absl::StatusOr<json> received = joined.link.receive(deadline, kHelloBytes);
    if (!received.ok())
      return absl::UnavailableError(
          fmt::format("ps/{} {} before it listened", joined.task.index, message_of(received.status())));
    const auto number = received->find("port");
    if (number != received->end() && number->is_number_unsigned()) ports[joined.task.index] = number->get<uint16_t>();
  }
  const json answer{{"addresses", with_ports(assignments_.assignment_of({"ps", 0}).ps_hosts, ports)}};
  for (JoinedTask& joined : joined_tasks_) joined.link.send(answer, Clock::now() + kHello).IgnoreError();
  // The connections have done their work: tasks find the ps by address from here on.
  joined_tasks_.clear();
  return absl::OkStatus();
}

/// All other tasks.
class Joiner final : public Rendezvous {
 public:
  explicit Joiner(const RendezvousRequest& request) : request_(request) {}

  absl::Status arrive();
  absl::Status publish(uint16_t port) override {
    return lost(link_->send({{"port", port}}, Clock::now() + request_.timeout));
  }
  absl::StatusOr<std::vector<std::string>> ps_addresses() override;

 private:
  absl::Status lost(const absl::Status& status) const {
    if (status.ok()) return status;
    return absl::UnavailableError(fmt::format("the first task of {} at {} {}", request_.launch.job,
                                              request_.launch.rendezvous, message_of(status)));
  }
  absl::Status connect(TimePoint deadline);

  const RendezvousRequest request_;
  std::unique_ptr<JsonLink> link_;
};

absl::Status Joiner::connect(TimePoint deadline) {
  const ps::Launch& launch = request_.launch;
  while (true) {
    const TimePoint until = std::min(deadline, Clock::now() + kProgressInterval);
    absl::StatusOr<JsonLink> link = JsonLink::connect(launch.rendezvous, until);
    if (link.ok()) {
      link_ = std::make_unique<JsonLink>(*std::move(link));
      return absl::OkStatus();
    }
    const std::string why(message_of(link.status()));
    // Any other error, such as an unknown host, does not pass by waiting.
    if (!absl::IsDeadlineExceeded(link.status()))
      return absl::InvalidArgumentError(fmt::format(
          "the tasks of {} cannot meet: {}; name the host of the first one with --rendezvous tcp://HOST:PORT",
          launch.job, why));
    if (until == deadline)
      return absl::DeadlineExceededError(fmt::format("the first task of {} did not come: {}", launch.job, why));
    request_.say(fmt::format("waiting for the first task of {}: {}", launch.job, why));
  }
}

absl::Status Joiner::arrive() {
  const TimePoint deadline = Clock::now() + request_.timeout;
  GRADRAIL_RETURN_IF_ERROR(connect(deadline));
  RankHello hello = hello_of(request_);
  // The interface that leads to the first task leads to the others, too.
  if (hello.address.empty()) hello.address = link_->local_host();
  GRADRAIL_RETURN_IF_ERROR(lost(link_->send(to_json(hello), Clock::now() + kHello)));
  // Longer than the first task waits: its message, which names the missing tasks, arrives first.
  const absl::StatusOr<json> answer = link_->receive(deadline + kProgressInterval);
  if (!answer.ok()) return lost(answer.status());
  if (const auto why = answer->find("refused"); why != answer->end() && why->is_string())
    return absl::FailedPreconditionError(fmt::format("the first task at {} refused {}: {}", request_.launch.rendezvous,
                                                     name_of(hello), why->get<std::string>()));
  std::optional<RankAssignment> assignment = assignment_from(*answer);
  if (!assignment) return lost(absl::InvalidArgumentError("speaks another protocol"));
  assignment_ = *std::move(assignment);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> Joiner::ps_addresses() {
  const absl::StatusOr<json> answer = link_->receive(Clock::now() + request_.timeout + kProgressInterval);
  if (!answer.ok()) return lost(answer.status());
  const auto list = answer->find("addresses");
  std::vector<std::string> addresses;
  if (list != answer->end() && list->is_array()) {
    for (const json& each : *list) addresses.push_back(each.is_string() ? each.get<std::string>() : "");
  }
  if (addresses.size() != request_.ps_count) return lost(absl::InvalidArgumentError("speaks another protocol"));
  return addresses;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Rendezvous>> Rendezvous::join(const RendezvousRequest& request) {
  const ps::Launch& launch = request.launch;
  const bool hosts =
      launch.role == ps::Launch::Role::scheduler || (launch.role == ps::Launch::Role::by_rank && launch.rank == 0u);
  if (hosts) {
    auto host = std::make_unique<RendezvousServer>(request);
    GRADRAIL_RETURN_IF_ERROR(host->gather());
    return host;
  }
  auto joiner = std::make_unique<Joiner>(request);
  GRADRAIL_RETURN_IF_ERROR(joiner->arrive());
  return joiner;
}

}  // namespace gradrail::tools
