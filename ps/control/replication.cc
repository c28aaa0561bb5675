#include "ps/control/replication.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/log.h"
#include "base/random_bits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/admission/grpc_channel.h"
#include "ps/protocol/control.pb.h"
#include "ps/protocol/control_channel.h"
#include "ps/protocol/security.h"

namespace gradrail::ps {
namespace {

constexpr char kAnyPort[] = ":0";

}  // namespace

Replication::Replication(ControlContext& context)
    : context_(context), process_(random_bits()), is_backup_(context.options.begins_as_backup) {}

absl::Status Replication::start() {
  GRADRAIL_CHECK(link_ == nullptr);
  const ServerOptions& options = context_.options;
  if (options.replication_peer.empty()) return absl::OkStatus();
  // The state of the run travels to the peer: the rule for workers holds here as well.
  if (!options.find_replication_peer)
    GRADRAIL_RETURN_IF_ERROR(check_exposure(options.security, options.replication_peer));
  std::shared_ptr<ControlDialer> dialer = options.dialer;
  if (dialer == nullptr) {
    GRADRAIL_ASSIGN_OR_RETURN(dialer, grpc_dialer(options.security, {}));
  }
  link_ = std::make_unique<ReplicationLink>(
      ReplicationLink::Options{.dialer = std::move(dialer),
                               .secret = options.security.secret,
                               .address = [this] { return find_peer(); },
                               .transports = options.transports,
                               .heartbeat_timeout = options.heartbeat_timeout,
                               .fill_message = [this](proto::ReplicateRequest& message) { fill_message(message); },
                               .replaced = [this] { on_replaced(); },
                               .refused = [this](const absl::Status& why) { on_refused(why); },
                               .console = options.console},
      context_.shards);
  GRADRAIL_RETURN_IF_ERROR(link_->start_thread());
  // The link of a backup waits for a takeover, because only the task that serves has state to send.
  if (!is_backup_) link_->start();
  return absl::OkStatus();
}

void Replication::set_peer_port(uint32_t port) {
  if (port > 0 && port <= UINT16_MAX) peer_port_ = static_cast<uint16_t>(port);
}

/// Address of the replication peer. The kernel chooses the ports in a local cluster. A backup starts before its
/// primary, and has port 0 in its options.
std::string Replication::peer_address() const {
  const std::string& given = context_.options.replication_peer;
  const uint16_t learned = peer_port_;
  if (!absl::EndsWith(given, kAnyPort) || learned == 0) return given;
  return fmt::format("{}:{}", std::string(absl::StripSuffix(given, kAnyPort)), learned);
}

/// Errors  NOT_FOUND: the address is unknown now, which is no sign that the peer has exited.
absl::StatusOr<std::string> Replication::find_peer() const {
  const ServerOptions& options = context_.options;
  if (!options.find_replication_peer) return peer_address();
  absl::StatusOr<std::string> found = options.find_replication_peer();
  if (!found.ok()) return absl::NotFoundError(found.status().message());
  GRADRAIL_RETURN_IF_ERROR(check_exposure(options.security, *found));
  return found;
}

void Replication::on_replaced() {
  {
    MutexLock lock(context_.state.mutex);
    // Two sources report it: the answer of the peer, and its first message.
    if (is_backup_) return;
    // A task without a run has nothing to lose. A begun run has answered workers: this process cannot follow another.
    is_backup_ = context_.state.run.generation == 0;
    context_.state.primary.heard = Clock::now();
  }
  if (!is_backup_) {
    // The flag is set before the abort is visible: workers then join the replication peer, where the run continues.
    was_replaced_ = true;
    return context_.losses.report_failure(fmt::format(
        "the backup at {} has taken over, because this ps task lost the connection to its workers; the updates "
        "that this task has made alone are lost, and workers that return repeat their steps; after a restart "
        "it is the backup",
        context_.options.replication_peer));
  }
  if (context_.options.console) {
    context_.options.console(fmt::format("{} has taken over; this one is its backup", replication_peer_name()));
  }
}

void Replication::on_refused(const absl::Status& why) {
  {
    MutexLock lock(context_.state.mutex);
    // A run under way continues without a backup. Before its begin, an operator can still correct the options.
    if (context_.state.run.generation > 0) return;
  }
  is_misconfigured_ = true;
  context_.losses.report_failure(
      fmt::format("the backup at {}: {}", context_.options.replication_peer, message_of(why)));
}

void Replication::take_over(uint64_t process, uint64_t term) {
  GRADRAIL_CHECK(is_backup_ && link_ != nullptr);
  // The role changes last: a thread that finds this task serving also finds process and term of the run.
  process_ = process;
  term_ = term;
  is_backup_ = false;
  // The former primary can return as the backup of this task.
  if (replication_peer_can_return()) link_->start();
  log_warning("took over from {}, which was lost", replication_peer_name());
}

void Replication::set_deserted(bool deserted) {
  if (link_ != nullptr && !is_backup_) link_->set_deserted(deserted);
}

absl::Status Replication::check_serving() const {
  if (was_replaced_) return absl::UnavailableError("its backup has taken over");
  if (link_ == nullptr || is_backup_) return absl::OkStatus();
  if (link_->is_isolated())
    return absl::UnavailableError("the ps task had lost all workers, and checks whether its backup has taken over");
  // A term above 0 is proof enough: this task has taken over in this process.
  if (term_ > 0 || link_->has_asked()) return absl::OkStatus();
  // A task that restarts after the takeover would otherwise begin a second run beside that of its backup.
  return absl::UnavailableError("the ps task checks whether its backup has taken over");
}

absl::Status Replication::still_backup_error() const {
  return absl::UnavailableError(fmt::format("this is the backup of {}, which is live", replication_peer_name()));
}

absl::Status Replication::no_peer_error() {
  return absl::FailedPreconditionError("this ps task was started without --backup-ps 1: give it to all tasks of a run");
}

bool Replication::replication_peer_can_return() const { return !absl::EndsWith(peer_address(), kAnyPort); }

std::string Replication::replication_peer_name() const {
  const ServerOptions& options = context_.options;
  if (options.find_replication_peer) return options.replication_peer;
  return replication_peer_can_return() ? fmt::format("the ps task at {}", peer_address()) : "its ps task";
}

std::string Replication::backup_state() const { return link_ == nullptr || is_backup_ ? "" : link_->state(); }

void Replication::report_shard(const std::string& cause) {
  if (link_ != nullptr) link_->on_shard_report(cause);
}

void Replication::wait_for_backup() {
  if (link_ != nullptr) link_->wait_for_backup();
}

void Replication::end() {
  if (link_ != nullptr) link_->end();
}

void Replication::stop() {
  if (link_ != nullptr) link_->stop();
}

void Replication::fill_message(proto::ReplicateRequest& message) {
  message.set_protocol_version(kProtocolVersion);
  message.set_process(process_);
  message.set_term(term_);
  message.set_port(port_);
  message.set_shards(static_cast<uint32_t>(context_.shards.size()));
  message.set_checkpoint_folder(context_.checkpoint_folder);
  message.set_encrypts_data(context_.options.security.encrypt_data);
  std::shared_ptr<const proto::JoinRequest> agreed;
  {
    ControlState& state = context_.state;
    MutexLock lock(state.mutex);
    message.set_generation(state.run.generation);
    message.set_run_base(state.run.run_base);
    message.set_run(state.run.run);
    if (state.run.generation > 0) *message.mutable_began_from() = to_proto(state.run.began_from);
    agreed = state.run.agreed;
    for (const Membership::Known& known : state.membership.known_members()) {
      proto::ReplicateRequest::Worker& worker = *message.add_workers();
      worker.mutable_member()->set_task_index(known.worker);
      worker.mutable_member()->set_incarnation(known.incarnation);
      worker.set_name(known.name);
      worker.set_departed(known.departed);
    }
    // The same lock covers the members: the backup must not get a mixture.
    message.set_continued(state.membership.is_continued());
    message.set_over(state.membership.finished());
    message.set_aborted(state.membership.aborted());
  }
  GRADRAIL_CHECK(message.generation() == 0 || agreed != nullptr);  // publish() sets both
  if (agreed != nullptr) *message.mutable_agreed() = *agreed;      // a schema may be large: copied without the lock
}

}  // namespace gradrail::ps
