#include "worker/aggregator/aggregator.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "base/file_descriptor.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/net_address.h"
#include "base/rate_limited_log.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/admission/gated_server.h"
#include "ps/protocol/cluster_spec.h"
#include "ps/protocol/control.pb.h"
#include "ps/protocol/control_call.h"
#include "ps/protocol/control_status.h"
#include "ps/protocol/mac.h"
#include "ps/protocol/training.h"
#include "transport/registry.h"
#include "worker/aggregator/session.h"

namespace gradrail::aggregator {
namespace {

constexpr auto kIdleLimit = std::chrono::minutes(1);
/// Each session has a thread. More groups and shards than an aggregator serves are a mistake, or an attack.
constexpr size_t kMaxSessions = 4096;
constexpr uint32_t kMaxShards = 1 << 16;

/// The content of a request, checked.
struct Attachment {
  ps::Training training;
  std::shared_ptr<const ps::ShardMap> map;
  uint32_t worker = 0;
  uint32_t group = 0;
};

absl::StatusOr<Attachment> read(const ps::proto::AttachRequest& request) {
  const ps::proto::JoinRequest& joined = request.joined();
  GRADRAIL_RETURN_IF_ERROR(ps::check_protocol_version(joined.protocol_version()));
  const ps::Schema schema = ps::schema_from_proto(joined);
  GRADRAIL_RETURN_IF_ERROR(ps::validate(schema));
  GRADRAIL_ASSIGN_OR_RETURN(const ps::Training training, ps::from_proto(joined.training()));
  const uint32_t worker = joined.member().task_index();
  if (worker >= ps::kMaxWorkers)
    return absl::InvalidArgumentError(fmt::format("worker {}: the limit is {} workers", worker, ps::kMaxWorkers));
  if (training.mode.sum_group == 0)
    return absl::FailedPreconditionError("the run has no groups of workers: give --aggregators to all workers");
  if (joined.total_shards() > kMaxShards || request.shard_index() >= joined.total_shards()) {
    return absl::InvalidArgumentError(
        fmt::format("no shard {} in a run of {} shards", request.shard_index(), joined.total_shards()));
  }
  GRADRAIL_ASSIGN_OR_RETURN(ps::ShardMap map, ps::ShardMap::cut(ps::layout_of(schema), joined.total_shards(),
                                                                training.bucket_bytes, training.push));
  return Attachment{.training = training,
                    .map = std::make_shared<const ps::ShardMap>(std::move(map)),
                    .worker = worker,
                    .group = worker / training.mode.sum_group};
}

grpc::Status no_parameter_server() {
  return ps::to_grpc(absl::FailedPreconditionError(
      "this is an aggregator, not a parameter server: name its address in --aggregators alone"));
}

std::map<std::string, ps::PathTraffic> add_traffic(std::map<std::string, ps::PathTraffic> all,
                                                   const std::vector<ps::PathTraffic>& more) {
  for (const ps::PathTraffic& each : more) {
    ps::PathTraffic& sum = all[each.path];
    sum = {each.path, sum.bytes_in + each.bytes_in, sum.bytes_out + each.bytes_out};
  }
  return all;
}

/// Workers with equal keys share a session.
std::string key_of(const ps::proto::AttachRequest& request, uint32_t group) {
  ps::proto::AttachRequest common = request;
  common.clear_token();
  common.set_server("");
  ps::proto::JoinRequest only;
  *only.mutable_schema() = request.joined().schema();
  *only.mutable_training() = request.joined().training();
  only.set_total_shards(request.joined().total_shards());
  only.set_group(request.joined().group());
  only.set_position(group);
  *common.mutable_joined() = std::move(only);
  return common.SerializeAsString();
}

}  // namespace

class Aggregator::Impl final : public ps::proto::Control::Service {
 public:
  explicit Impl(const AggregatorOptions& options) : options_(options) {}
  ~Impl() override {
    if (server_ != nullptr) server_->shutdown(std::chrono::milliseconds(500));
  }

  absl::Status listen() {
    GRADRAIL_RETURN_IF_ERROR(ps::check_exposure(options_.security, options_.listen_address));
    GRADRAIL_RETURN_IF_ERROR(ps::check_encryption(options_.security));
    GRADRAIL_ASSIGN_OR_RETURN(const auto credentials, ps::server_credentials(options_.security));
    GRADRAIL_ASSIGN_OR_RETURN(const ps::HostPort address, ps::parse_host_port(options_.listen_address));
    host_ = address.host;
    allow_many_open_files();  // its workers and shards are not known yet
    if (is_any_host(host_)) {
      return absl::FailedPreconditionError(fmt::format(
          "{}: workers connect to this address: name one of this host that they can reach", options_.listen_address));
    }
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(ps::kMaxMessageBytes);
    builder.RegisterService(this);
    absl::StatusOr<std::unique_ptr<ps::GatedServer>> started =
        ps::GatedServer::start(builder, options_.listen_address, credentials, {.secret = options_.security.secret});
    if (!started.ok()) return absl::FailedPreconditionError(started.status().message());
    server_ = *std::move(started);
    return absl::OkStatus();
  }

  uint16_t port() const { return server_->port(); }

  size_t session_count() const {
    MutexLock lock(mutex_);
    return sessions_.size();
  }

  AggregatorStats stats() const {
    AggregatorStats stats;
    std::vector<std::shared_ptr<Session>> sessions;
    std::map<std::string, ps::PathTraffic> all;
    {
      MutexLock lock(mutex_);
      for (const auto& [key, session] : sessions_) sessions.push_back(session);
      all = past_traffic_;
    }
    stats.sessions = sessions.size();
    // Without the lock: a session answers late while it connects to its shard.
    for (const auto& session : sessions) {
      const Session::Stats of_session = session->stats();
      stats.workers += of_session.workers;
      all = add_traffic(std::move(all), of_session.paths);
    }
    for (auto& [path, traffic] : all) stats.paths.push_back(std::move(traffic));
    return stats;
  }

  void end_idle_sessions() {
    for (const auto& [key, session] : idle_sessions()) {
      // Without the lock: a session answers late while it connects to its shard.
      const std::vector<ps::PathTraffic> paths = session->stats().paths;
      MutexLock lock(mutex_);
      if (!is_over(*session)) continue;  // a worker has attached since
      options_.log(fmt::format("{}: ended: it had no worker for a minute", session->name()));
      past_traffic_ = add_traffic(std::move(past_traffic_), paths);
      sessions_.erase(key);  // its thread ends behind the lock
    }
  }

  /// The first call of a worker to a parameter server.
  grpc::Status Describe(grpc::ServerContext*, const ps::proto::DescribeRequest*, ps::proto::DescribeReply*) override {
    return no_parameter_server();
  }

  /// The call of `gradrail top`.
  grpc::Status Stats(grpc::ServerContext*, const ps::proto::StatsRequest*, ps::proto::StatsReply*) override {
    return no_parameter_server();
  }

  grpc::Status Attach(grpc::ServerContext*, const ps::proto::AttachRequest* request,
                      ps::proto::AttachReply* reply) override {
    reply->set_protocol_version(ps::kProtocolVersion);
    const absl::Status attached = attach(*request, *reply);
    report(request->joined().member().task_index(), attached);
    return ps::to_grpc(attached);
  }

 private:
  static bool is_over(const Session& session) {
    const TimePoint idle = session.idle_since();
    return idle != TimePoint::max() && Clock::now() - idle > kIdleLimit;
  }

  std::vector<std::pair<std::string, std::shared_ptr<Session>>> idle_sessions() const {
    std::vector<std::pair<std::string, std::shared_ptr<Session>>> idle;
    MutexLock lock(mutex_);
    std::copy_if(sessions_.begin(), sessions_.end(), std::back_inserter(idle),
                 [](const auto& each) { return is_over(*each.second); });
    return idle;
  }

  /// A worker tries again at each look for better paths: the same reason is not repeated.
  void report(uint32_t worker, const absl::Status& attached) {
    const std::string why(message_of(attached));
    if (worker < ps::kMaxWorkers) {
      MutexLock lock(mutex_);
      if (std::exchange(refused_[worker], why) == why) return;
    }
    if (!attached.ok()) rate_limited_log_.write(fmt::format("worker {} was not attached: {}", worker, why));
  }

  absl::Status attach(const ps::proto::AttachRequest& request, ps::proto::AttachReply& reply) {
    GRADRAIL_ASSIGN_OR_RETURN(const Attachment attachment, read(request));
    GRADRAIL_ASSIGN_OR_RETURN(const std::shared_ptr<Session> session, find_or_start(request, attachment));
    GRADRAIL_RETURN_IF_ERROR(session->admit({.worker = attachment.worker,
                                             .incarnation = request.joined().member().incarnation(),
                                             .key = ps::data_key(options_.security.secret, request.token())}));
    reply.set_host_id(transport::host_id());
    for (const ps::ShardEndpoint& endpoint : session->endpoints()) {
      auto* const transport = reply.add_transports();
      transport->set_name(endpoint.transport);
      transport->set_refused(endpoint.refused);
      if (!endpoint.refused.empty()) continue;
      auto* const message = reply.add_endpoints();
      message->set_transport(endpoint.transport);
      message->set_address(without_scopes(endpoint.address));
      message->set_rails(without_scopes(endpoint.rails));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::shared_ptr<Session>> find_or_start(const ps::proto::AttachRequest& request,
                                                         const Attachment& attachment) {
    const std::string key = key_of(request, attachment.group);
    MutexLock lock(mutex_);
    if (const auto found = sessions_.find(key); found != sessions_.end()) return found->second;
    if (sessions_.size() >= kMaxSessions)
      return absl::ResourceExhaustedError(fmt::format("the limit is {} groups and shards", kMaxSessions));
    GRADRAIL_ASSIGN_OR_RETURN(std::unique_ptr<Session> session, Session::start(session_options(request, attachment)));
    const bool has_former = std::any_of(sessions_.begin(), sessions_.end(),
                                        [&](const auto& each) { return each.second->name() == session->name(); });
    options_.log(fmt::format(
        "{}: started{}", session->name(),
        has_former ? " for another process or run of this server; the former session ends without workers" : ""));
    return sessions_[key] = std::move(session);
  }

  Session::Options session_options(const ps::proto::AttachRequest& request, const Attachment& attachment) const {
    ShardTarget target = {.map = attachment.map,
                          .shard_index = request.shard_index(),
                          .returns = attachment.training.returns,
                          .server = request.server(),
                          .host_id = request.host_id()};
    for (const auto& endpoint : request.shard().endpoints())
      target.endpoints.push_back({endpoint.transport(), with_scope_of(options_.listen_address, endpoint.address()), "",
                                  with_scope_of(options_.listen_address, endpoint.rails())});
    const transport::OpenOptions open = {.bind_host = host_,
                                         .rdma_only = options_.rdma_only,
                                         .ofi_provider = options_.ofi_provider,
                                         .path_timeout = options_.path_timeout,
                                         .encryption = ps::data_encryption(options_.security)};
    const uint32_t group_size = attachment.training.mode.sum_group;
    // For its workers the session is a shard without groups.
    ps::Mode mode = attachment.training.mode;
    mode.sum_group = 0;
    return {
        .listen = {.name =
                       fmt::format("workers {} to {} at shard {} of {}", attachment.group * group_size,
                                   (attachment.group + 1) * group_size - 1, request.shard_index(), request.server()),
                   .transports = options_.transports,
                   .bind_host = host_,
                   .open = open,
                   .wait = options_.wait,
                   .slot_bytes = options_.slot_bytes},
        .connect = {.transports = options_.transports, .open = open, .encrypts_data = options_.security.encrypt_data},
        .setup = {.shard_index = request.shard_index(),
                  .map = *attachment.map,
                  .mode = mode,
                  .optimizer = {.kind = ps::OptimizerKind::mean},
                  .push = attachment.training.push,
                  .returns = attachment.training.returns},
        .target = std::move(target),
        .first_worker = attachment.group * group_size,
        .group_size = group_size,
        .log = options_.log};
  }

  const AggregatorOptions options_;
  std::string host_;
  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<Session>> sessions_ ABSL_GUARDED_BY(mutex_);
  RateLimitedLog rate_limited_log_;
  std::map<uint32_t, std::string> refused_ ABSL_GUARDED_BY(mutex_);  ///< by worker: why its last attempt failed
  std::map<std::string, ps::PathTraffic> past_traffic_ ABSL_GUARDED_BY(mutex_);  ///< of ended sessions, by path
  std::unique_ptr<ps::GatedServer> server_;                                      ///< last: its calls use the rest
};

absl::StatusOr<std::unique_ptr<Aggregator>> Aggregator::start(const AggregatorOptions& options) {
  auto impl = std::make_unique<Impl>(options);
  GRADRAIL_RETURN_IF_ERROR(impl->listen());
  return std::unique_ptr<Aggregator>(new Aggregator(std::move(impl)));
}

Aggregator::Aggregator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Aggregator::~Aggregator() = default;
uint16_t Aggregator::port() const { return impl_->port(); }
void Aggregator::end_idle_sessions() { impl_->end_idle_sessions(); }
size_t Aggregator::session_count() const { return impl_->session_count(); }
AggregatorStats Aggregator::stats() const { return impl_->stats(); }

}  // namespace gradrail::aggregator
