#include "worker/aggregator/shard_side.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/protocol/control.pb.h"
#include "ps/protocol/data_message.h"
#include "ps/protocol/mac.h"
#include "ps/protocol/path_check.h"
#include "transport/rails/bundle_context.h"
#include "transport/registry.h"

namespace gradrail::aggregator {
namespace {

using Phase = worker::ShardPath::Phase;

constexpr auto kConnectDeadline = std::chrono::seconds(1);
/// As long as a worker gives one attempt.
constexpr auto kHandshakeDeadline = std::chrono::seconds(2);

/// Waits for the challenge of the shard, which shows that its process runs. Without the wait the shard would report a
/// handshake that its peer has ended.
/// Errors  UNAVAILABLE: none until the deadline.
absl::Status await_challenge(transport::Context& context, transport::WaitPolicy policy, TimePoint deadline) {
  transport::WaitSet wait_set(policy);
  wait_set.add(&context);
  transport::Completion arrived[1];
  while (wait_set.wait(absl::MakeSpan(arrived), deadline) == 0)
    if (Clock::now() >= deadline) return absl::UnavailableError("the shard accepts connections and does not answer");
  return absl::OkStatus();
}

}  // namespace

ShardSide::ShardSide(Options options, ShardTarget target, MemorySpan parameters, MemorySpan sums,
                     transport::WaitSet& wait_set)
    : options_(std::move(options)),
      target_(std::move(target)),
      parameters_(parameters),
      sums_(sums),
      wait_set_(wait_set) {
  link_.map = target_.map;
  link_.shard_index = target_.shard_index;
  link_.range = target_.map->shard(target_.shard_index);
  link_.bucket_count = target_.map->bucket_count(target_.shard_index);
  link_.returns = target_.returns;
  link_.server = target_.server;
  std::vector<transport::PeerTransport> theirs;
  for (const ps::ShardEndpoint& endpoint : target_.endpoints) theirs.push_back({endpoint.transport, endpoint.refused});
  link_.candidates = transport::rank_candidates(options_.transports, theirs, transport::host_id(), target_.host_id,
                                                options_.encrypts_data);
}

ShardSide::~ShardSide() { close(); }

absl::Status ShardSide::allocate(const MemoryBinder& place) {
  return decoder_.allocate(target_.returns, link_.range.count, place);
}

void ShardSide::close() {
  path_.reset();
  if (context_ != nullptr) wait_set_.remove(context_->context.get());
  context_.reset();
}

void ShardSide::regroup() {
  GRADRAIL_CHECK(is_active());
  ps::proto::ToShard message;
  message.set_regroup(true);
  ps::send_message(path_->connection(), message).IgnoreError();  // best effort: it only spares a warning
}

const ps::ShardEndpoint& ShardSide::endpoint_of(const transport::Candidate& candidate) const {
  const auto endpoint = std::find_if(target_.endpoints.begin(), target_.endpoints.end(),
                                     [&](const ps::ShardEndpoint& each) { return each.transport == candidate.name; });
  GRADRAIL_CHECK(endpoint != target_.endpoints.end());  // rank_candidates() has compared the names
  return *endpoint;
}

absl::StatusOr<std::unique_ptr<transport::Context>> ShardSide::open_transport(const ps::ShardEndpoint& endpoint) const {
  GRADRAIL_ASSIGN_OR_RETURN(const transport::Transport* const found, transport::find_transport(endpoint.transport));
  GRADRAIL_ASSIGN_OR_RETURN(std::unique_ptr<transport::Context> context, found->open(options_.open));
  // A shard with a context for each rail gives the address of its first rail.
  if (!endpoint.address.starts_with(transport::rails::kLanesPrefix)) return context;
  GRADRAIL_ASSIGN_OR_RETURN(context, transport::rails::BundleContext::over(std::move(context)));
  return context;
}

absl::StatusOr<worker::OpenContext*> ShardSide::open_context(const ps::ShardEndpoint& endpoint) {
  auto open = std::make_unique<worker::OpenContext>();
  open->transport = endpoint.transport;
  GRADRAIL_ASSIGN_OR_RETURN(open->context, open_transport(endpoint));
  GRADRAIL_RETURN_IF_ERROR(worker::register_model(*open, registered_, parameters_, sums_, /*shard_on_gpu=*/false));
  context_ = std::move(open);
  wait_set_.add(context_->context.get());
  return context_.get();
}

absl::Status ShardSide::reach() const {
  const TimePoint deadline = Clock::now() + kConnectDeadline;
  absl::Status reached = absl::FailedPreconditionError(transport::explain_none(link_.candidates));
  for (const transport::Candidate& candidate : link_.candidates) {
    if (candidate.never) continue;
    const ps::ShardEndpoint& endpoint = endpoint_of(candidate);
    const absl::StatusOr<std::unique_ptr<transport::Context>> context = open_transport(endpoint);
    reached = context.ok() ? (*context)->connect(endpoint.address, deadline).status() : context.status();
    if (reached.ok()) reached = await_challenge(**context, wait_set_.policy(), deadline);
    if (reached.ok()) break;
  }
  return reached;
}

absl::Status ShardSide::open(const std::vector<GroupMember>& members) {
  GRADRAIL_CHECK(!members.empty());
  close();
  auto& candidates = link_.candidates;
  const auto may_be_tried = [](const transport::Candidate& candidate) { return !candidate.never; };
  if (std::none_of(candidates.begin(), candidates.end(), may_be_tried))
    return absl::FailedPreconditionError(transport::explain_none(candidates));
  while (candidates[next_candidate_ % candidates.size()].never) ++next_candidate_;
  transport::Candidate& candidate = candidates[next_candidate_++ % candidates.size()];
  const ps::ShardEndpoint& endpoint = endpoint_of(candidate);
  GRADRAIL_ASSIGN_OR_RETURN(worker::OpenContext* const context, open_context(endpoint));
  ps::proto::JoinPath join_path;
  join_path.set_first_element(link_.range.first);
  for (const GroupMember& member : members) {
    ps::proto::JoinPath::GroupMember& each = *join_path.add_group();
    each.mutable_member()->set_task_index(member.worker);
    each.mutable_member()->set_incarnation(member.incarnation);
    each.set_number(member.number);
  }
  *join_path.mutable_member() = join_path.group(0).member();
  const auto prove = [members](ps::proto::JoinPath& join, const std::string& challenge) {
    for (size_t i = 0; i < members.size(); ++i)
      join.mutable_group(static_cast<int>(i))->set_proof(ps::mac_of(members[i].key, {challenge}));
  };
  const TimePoint now = Clock::now();
  deadline_ = now + kHandshakeDeadline + ps::allocation_time(link_.range.count * sizeof(float));
  GRADRAIL_ASSIGN_OR_RETURN(path_, worker::ShardPath::open(link_, *context, endpoint.address, join_path, prove,
                                                           registered_, nullptr, {}, now + kConnectDeadline));
  connection_ = &path_->connection();
  answers_.assign(link_.bucket_count, 0);  // the shard numbers the answers of each connection from 1
  is_refused_ = false;
  return absl::OkStatus();
}

void ShardSide::on_completion(const transport::Completion& completion) {
  using Kind = transport::Completion::Kind;
  if (completion.kind == Kind::peer_lost) return path_->on_lost(message_of(completion.cause));
  if (completion.kind == Kind::put_arrived) {
    if (path_->phase() != Phase::failed) path_->on_check(completion.immediate);
    return;
  }
  if (completion.kind != Kind::message || path_->phase() == Phase::failed) return;
  ps::proto::ToWorker message;
  const bool parsed = message.ParseFromArray(completion.message.data(), static_cast<int>(completion.message.size()));
  if (parsed && message.has_group_refused()) {
    refused_.assign(message.group_refused().workers().begin(), message.group_refused().workers().end());
    next_candidate_ = 0;  // the transport works: the next connection has other members
    return;               // the end of the connection follows
  }
  if (parsed && message.has_member_finished()) return finished_.push_back(message.member_finished().worker());
  is_refused_ = is_refused_ || (parsed && message.has_refused());
  if (parsed && message.has_welcome())
    finished_.insert(finished_.end(), message.welcome().finished().begin(), message.welcome().finished().end());
  path_->on_message(completion.message);
}

absl::Status ShardSide::take_parameters(const ps::ReturnHeader& header, uint32_t bucket) {
  ps::ElementRange range = target_.map->bucket(target_.shard_index, bucket);
  const std::byte* const packed = path_->packed_parameters(bucket, range);
  range.first -= link_.range.first;
  const absl::Span<float> parameters(reinterpret_cast<float*>(parameters_.data) + range.first, range.count);
  if (target_.returns == ps::ReturnFormat::fp32) {  // the shard has stored them there
    const bool matches = header.has_crc == 0 || crc32c(parameters.data(), range.count * sizeof(float)) == header.crc32c;
    return matches ? absl::OkStatus() : absl::DataLossError("do not match their CRC32C");
  }
  GRADRAIL_RETURN_IF_ERROR(decoder_.unpack(header, answers_[bucket], packed, range, parameters));
  answers_[bucket] = header.answer;
  return absl::OkStatus();
}

bool ShardSide::advance() {
  if (!is_open()) return false;
  if (path_->phase() == Phase::ready) {
    path_->activate();
    next_candidate_ = 0;  // the next connection begins with the best transport again
  }
  return path_->advance();
}

std::string ShardSide::failure() const {
  if (!is_open()) return "";
  if (path_->phase() == Phase::failed) return path_->why();
  if (path_->phase() != Phase::active && Clock::now() >= deadline_) return "the shard did not answer in time";
  return "";
}

}  // namespace gradrail::aggregator
