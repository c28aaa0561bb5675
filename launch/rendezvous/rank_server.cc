#include "launch/rendezvous/rank_server.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "absl/memory/memory.h"
#include "base/net_address.h"
#include "base/resource_limits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "gradrail/cluster.h"

namespace gradrail::launch {
namespace {

constexpr char kComplete[] = "all ranks of that job have joined";

}  // namespace

RankServer::RankServer(const RankServerOptions& options, FileDescriptor arrived)
    : options_(options),
      assignments_(options.hello.size(), options.hello.ps_count()),
      streams_(options.hello.size()),
      arrived_(std::move(arrived)) {}

absl::Status RankServer::listen() {
  GRADRAIL_ASSIGN_OR_RETURN(HostPort meet, parse_host_port(options_.address));
  // The host's own name may be an address that no other host reaches.
  if (!is_loopback_host(meet.host) && meet.host != "localhost") meet.host = "::";
  absl::StatusOr<std::unique_ptr<ps::AdmissionGate>> gate =
      ps::AdmissionGate::listen(to_string(meet), {.secret = options_.secret});
  if (!gate.ok()) {
    return absl::FailedPreconditionError(
        fmt::format("the first task of {} {}; choose another port for all tasks (--rendezvous tcp://HOST:PORT, or the "
                    "cluster)",
                    options_.hello.job(), message_of(gate.status())));
  }
  gate_ = *std::move(gate);
  return gate_->start([this](FileDescriptor socket) {
    auto stream = std::make_unique<RankStream>(std::move(socket), "a rank that joins");
    const MutexLock lock(mutex_);
    if (is_complete_) stream->refuse(kComplete);
    // A refused one remains as well: a close before its hello is read would reset the connection.
    arrivals_.push_back(std::move(stream));
    eventfd_write(arrived_.get(), 1);
  });
}

std::string RankServer::mismatch(const proto::RankHello& hello) const {
  const proto::RankHello& ours = options_.hello;
  if (hello.version() != ours.version())
    return fmt::format("it is {}, the first one {}", hello.version(), ours.version());
  if (hello.size() != ours.size())
    return fmt::format("it has {} tasks, the first one has {}", hello.size(), ours.size());
  if (hello.ps_count() != ours.ps_count())
    return fmt::format("--ps {} there, --ps {} here", hello.ps_count(), ours.ps_count());
  if (hello.backup_ps() != ours.backup_ps())
    return fmt::format("--backup-ps {:d} there, --backup-ps {:d} here", hello.backup_ps(), ours.backup_ps());
  return "";
}

/// Errors  FAILED_PRECONDITION: a task of the job does not fit, so that the wait for it would be in vain.
absl::Status RankServer::admit(RankStreamPtr stream, proto::RankHello hello) {
  // The address from which the rank connects is one that this host, and probably others, can reach.
  if (hello.address().empty()) hello.set_address(stream->peer_host());
  const auto refuse = [&](const std::string& reason) {
    stream->refuse(reason);
    return reason;
  };
  // Two jobs with one port on one host: the other job has to change, and this one waits for its own tasks.
  if (hello.job() != options_.hello.job()) {
    refuse(fmt::format(
        "this rendezvous belongs to {}, the task to {}: give one of the two jobs another --rendezvous tcp://HOST:PORT",
        options_.hello.job(), hello.job()));
    return absl::OkStatus();
  }
  if (const std::string reason = mismatch(hello); !reason.empty())
    return absl::FailedPreconditionError(fmt::format("rank {}: {}", hello.rank(), refuse(reason)));
  // The address at which a rank has reached this host: other ranks can use it as well.
  if (options_.hello.address().empty()) assignments_.set_first_address(hello.first_address());
  if (const absl::Status taken = assignments_.take(hello); !taken.ok()) {
    options_.say(fmt::format("rank {} was refused: {}", hello.rank(), refuse(std::string(message_of(taken)))));
    return absl::OkStatus();
  }
  stream->set_joined(assignments_.name_of(hello.rank()));
  streams_[hello.rank()] = std::move(stream);
  return absl::OkStatus();
}

void RankServer::take_arrivals() {
  eventfd_t count = 0;
  eventfd_read(arrived_.get(), &count);
  const MutexLock lock(mutex_);
  std::move(arrivals_.begin(), arrivals_.end(), std::back_inserter(waiting_));
  arrivals_.clear();
}

void RankServer::wait_for_bytes(TimePoint deadline) const {
  std::vector<pollfd> polled = {{.fd = arrived_.get(), .events = POLLIN, .revents = 0}};
  for (const auto* const streams : {&waiting_, &streams_}) {
    for (const RankStreamPtr& stream : *streams)
      if (stream != nullptr) polled.push_back({.fd = stream->fd(), .events = POLLIN, .revents = 0});
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  poll(polled.data(), polled.size(), static_cast<int>(std::max<int64_t>(0, left)));
}

/// Admits each rank whose hello has arrived.
absl::Status RankServer::take_hellos() {
  for (RankStreamPtr& stream : waiting_) {
    if (!stream->is_ready()) continue;
    absl::StatusOr<proto::RankMessage> message = stream->receive(proto::RankMessage::kHello, TimePoint());
    RankStreamPtr taken = std::move(stream);
    if (message.ok()) GRADRAIL_RETURN_IF_ERROR(admit(std::move(taken), std::move(*message->mutable_hello())));
  }
  std::erase(waiting_, nullptr);
  return absl::OkStatus();
}

/// A rank that has joined sends nothing until all have: what arrives is its end.
void RankServer::forget_ended() {
  for (uint32_t rank = 0; rank < streams_.size(); ++rank) {
    if (streams_[rank] == nullptr || !streams_[rank]->is_ready()) continue;
    options_.say(fmt::format("{} has ended: another process may take its place", assignments_.name_of(rank)));
    assignments_.forget(rank);
    streams_[rank].reset();
  }
}

/// Refuses all further ranks.
void RankServer::close() {
  {
    const MutexLock lock(mutex_);
    is_complete_ = true;
  }
  take_arrivals();
  for (const RankStreamPtr& stream : waiting_) stream->refuse(kComplete);
}

absl::Status RankServer::wait_for_all() {
  GRADRAIL_RETURN_IF_ERROR(assignments_.take(options_.hello));
  const TimePoint deadline = Clock::now() + options_.timeout;
  TimePoint progress = Clock::now() + kRankProgress;
  const auto missing = [&] {
    return fmt::format("{} of {} at {}", fmt::join(assignments_.missing(), ", "), options_.hello.job(),
                       options_.address);
  };
  while (!assignments_.missing().empty()) {
    wait_for_bytes(std::min(deadline, progress));
    take_arrivals();
    forget_ended();
    GRADRAIL_RETURN_IF_ERROR(take_hellos());
    const TimePoint now = Clock::now();
    if (now >= deadline && !assignments_.missing().empty())
      return absl::DeadlineExceededError(fmt::format("{} did not join within {} s: has the launcher started them?",
                                                     missing(), options_.timeout / std::chrono::seconds(1)));
    if (now < progress) continue;
    // The log shows a user which tasks are missing.
    progress = now + kRankProgress;
    if (!assignments_.missing().empty()) options_.say(fmt::format("waiting for {}", missing()));
  }
  close();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RankServer>> RankServer::gather(const RankServerOptions& options) {
  FileDescriptor arrived(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!arrived) return kernel_refusal("eventfd", errno);
  auto server = absl::WrapUnique(new RankServer(options, std::move(arrived)));
  GRADRAIL_RETURN_IF_ERROR(server->listen());
  GRADRAIL_RETURN_IF_ERROR(server->wait_for_all());
  return server;
}

}  // namespace gradrail::launch
