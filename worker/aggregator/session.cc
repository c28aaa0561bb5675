// Set-up, the event loop, and the side of the shard.
#include "worker/aggregator/session.h"

#include <pthread.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "base/resource_limits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/optimizer/group_sum.h"
#include "ps/protocol/control.pb.h"
#include "ps/protocol/data_message.h"
#include "ps/protocol/push_format.h"
#include "ps/shard/shard.h"

namespace gradrail::aggregator {
namespace {

constexpr auto kTaskDeadline = std::chrono::seconds(10);
/// Waits while a peer has work that no completion announces.
constexpr auto kShortWait = std::chrono::milliseconds(1);
constexpr auto kLongWait = std::chrono::seconds(1);
constexpr auto kBetweenAttempts = std::chrono::milliseconds(100);
/// Shorter than the time for which a worker looks for another path (20 s).
constexpr auto kGiveUp = std::chrono::seconds(6);
/// A worker that was sent away would come back at once, and leave its other paths untried. Each return costs kGiveUp.
/// The time therefore doubles until the shard is reached.
constexpr Duration kFirstRefusal = std::chrono::seconds(1);
constexpr Duration kLongestRefusal = std::chrono::seconds(64);
constexpr Duration kFirstProbe = std::chrono::milliseconds(200);
constexpr Duration kLongestProbe = std::chrono::seconds(5);
constexpr size_t kCompletionsPerTurn = 64;

template <typename Visit>
void for_each_slot(uint64_t members, Visit visit) {
  for (; members != 0; members &= members - 1) visit(static_cast<uint32_t>(std::countr_zero(members)));
}

}  // namespace

Session::Session(Options options)
    : connect_(std::move(options.connect)),
      target_(std::move(options.target)),
      setup_(std::move(options.setup)),
      first_worker_(options.first_worker),
      group_size_(options.group_size),
      log_(std::move(options.log)),
      idle_since_(Clock::now()),
      environment_{.options = std::move(options.listen)},
      wait_set_(environment_.options.wait),
      parameters_(environment_),
      peers_(environment_, [this](const ps::ShardPeer& peer) { on_inactive(peer); }),
      backup_(environment_, partition_, peers_),
      handshake_(environment_, partition_, parameters_, peers_, backup_),
      protocol_(setup_.map.bucket_count(setup_.shard_index)) {}

absl::StatusOr<std::unique_ptr<Session>> Session::start(Options options) {
  GRADRAIL_CHECK(options.group_size > 0 && options.group_size <= ps::kMaxSumGroup);
  std::unique_ptr<Session> session(new Session(std::move(options)));
  GRADRAIL_RETURN_IF_ERROR(session->wait_set_.check());
  GRADRAIL_RETURN_IF_ERROR(session->open());
  GRADRAIL_ASSIGN_OR_RETURN(session->thread_, start_thread("of an aggregator", [raw = session.get()] { raw->run(); }));
  return session;
}

absl::Status Session::open() {
  const ps::ShardOptions& options = environment_.options;
  GRADRAIL_RETURN_IF_ERROR(partition_.reset_to(setup_, ps::make_host_store, options.place_memory, options.slot_bytes));
  GRADRAIL_ASSIGN_OR_RETURN(sums_.memory, ps::allocate_parameters(partition_.range().count, options.place_memory));
  GRADRAIL_ASSIGN_OR_RETURN(endpoints_, ps::listen(environment_, wait_set_));
  GRADRAIL_RETURN_IF_ERROR(parameters_.open(partition_));
  GRADRAIL_RETURN_IF_ERROR(partition_.start());
  shard_ =
      std::make_unique<ShardSide>(connect_, target_, partition_.store().parameters(), sums_.memory.span(), wait_set_);
  return shard_->allocate(options.place_memory);
}

Session::~Session() {
  tasks_.stop();
  wait_set_.wake();
  if (thread_.joinable()) thread_.join();
}

absl::Status Session::admit(const GroupMember& member) {
  const absl::StatusOr<absl::Status> admitted = tasks_.run_and_wait(
      environment_.options.name, kTaskDeadline, [this] { wait_set_.wake(); },
      [this, member] { return admit_in_thread(member); });
  return admitted.ok() ? *admitted : absl::UnavailableError(std::string(message_of(admitted.status())));
}

Session::Stats Session::stats() {
  const absl::StatusOr<Stats> read = tasks_.run_and_wait(
      name(), kTaskDeadline, [this] { wait_set_.wake(); },
      [this] {
        Stats stats = {.workers = static_cast<size_t>(std::popcount(protocol_.active())), .paths = peers_.traffic()};
        if (shard_traffic_.bytes_in + shard_traffic_.bytes_out > 0) stats.paths.push_back(shard_traffic_);
        return stats;
      });
  return read.ok() ? *read : Stats();
}

/// A worker that is admitted leaves its other path. It must not wait here for a shard that cannot be reached.
absl::Status Session::check_reach() {
  const TimePoint now = Clock::now();
  if (now >= reach_.refuse_until && !shard_->is_open() && now >= reach_.check_at) {
    const absl::Status reached = shard_->reach();
    if (!reached.ok()) refuse_workers(std::string(message_of(reached)));
    reach_.check_at = Clock::now() + kFirstRefusal;
  }
  if (now >= reach_.refuse_until) return absl::OkStatus();
  return absl::UnavailableError(fmt::format("it does not reach {}: {}", target_.server, reach_.why_not));
}

/// The time doubles until a connection to the shard serves.
void Session::refuse_workers(const std::string& why) {
  reach_.refusal = std::clamp(2 * reach_.refusal, kFirstRefusal, kLongestRefusal);
  reach_.refuse_until = Clock::now() + reach_.refusal;
  reach_.why_not = why;
}

absl::Status Session::admit_in_thread(const GroupMember& member) {
  const uint32_t slot = slot_of(member.worker);
  GRADRAIL_CHECK(slot < group_size_);
  GRADRAIL_RETURN_IF_ERROR(check_reach());
  std::optional<GroupMember>& known = members_[slot];
  if (known.has_value() && known->incarnation == member.incarnation && known->key != member.key)
    return absl::PermissionDeniedError(fmt::format("worker {} is here with another token", member.worker));
  known = member;
  peers_.admit(member.worker, member.incarnation, member.key);
  idle_since_ = protocol_.active() != 0 ? TimePoint::max() : Clock::now();
  return absl::OkStatus();
}

void Session::run() {
  pthread_setname_np(pthread_self(), "gradrail-group");
  std::vector<transport::Completion> completions(kCompletionsPerTurn);
  bool is_stopped = false;
  while (!is_stopped) {
    const size_t count = wait_set_.wait(absl::MakeSpan(completions), next_deadline(Clock::now()));
    for (size_t i = 0; i < count; ++i) dispatch(completions[i]);
    if (tasks_.has_work()) is_stopped = !tasks_.run();
    // Only here, behind all completions of the turn, connections end.
    drive_shard(Clock::now());
    if (peers_.needs_visit()) continue_peers();
  }
  shard_.reset();
}

TimePoint Session::next_deadline(TimePoint now) const {
  const bool is_urgent = peers_.has_unsettled() || !backlog_.empty() || (shard_->is_open() && !is_shard_active_);
  TimePoint next = std::min(now + (is_urgent ? Duration(kShortWait) : Duration(kLongWait)), reach_.give_up_at);
  if (reach_.is_wanted) next = std::min(next, reach_.open_at);
  return is_shard_active_ ? std::min(next, probing_.next) : next;
}

void Session::dispatch(transport::Completion& completion) {
  using Kind = transport::Completion::Kind;
  using Phase = ps::ShardPeer::Phase;
  if (completion.kind == Kind::connected)
    return handshake_.send_challenge(peers_.accept(*completion.connection, wait_set_.source_index()));
  if (shard_->owns(completion.connection)) {
    const bool is_answer = completion.kind == Kind::put_arrived && is_shard_active_;
    return is_answer ? on_answer(completion.immediate) : shard_->on_completion(completion);
  }
  ps::ShardPeer& peer = ps::PeerTable::peer_of(*completion.connection);
  switch (completion.kind) {
    case Kind::put_arrived:
      if (peer.phase == Phase::active) {
        on_arrival(peer, completion.immediate);
      } else if (peer.phase == Phase::checking) {
        handshake_.on_pattern(peer, completion.immediate);
      }
      break;
    case Kind::message:
      on_message(peer, completion.message);
      break;
    case Kind::peer_lost:
      // A worker that leaves ends it as well. The control plane reports losses.
      rate_limited_log_.write(fmt::format("{}: {} has ended: {}", environment_.options.name,
                                          peer.connection->describe(), message_of(completion.cause)),
                              spdlog::level::info);
      peers_.close(peer);
      break;
    default:
      break;
  }
}

void Session::on_message(ps::ShardPeer& peer, absl::Span<const std::byte> message) {
  using Phase = ps::ShardPeer::Phase;
  const bool was_active = peer.phase == Phase::active;
  ps::proto::ToShard parsed;
  if (was_active && parsed.ParseFromArray(message.data(), static_cast<int>(message.size())) && parsed.has_ping()) {
    ps::proto::ToWorker pong;
    pong.set_pong(true);
    return ps::send_message(*peer.connection, pong).IgnoreError();  // without room: another ping follows
  }
  handshake_.on_message(peer, message);
  if (was_active || peer.phase != Phase::active) return;
  protocol_.join(slot_of(peer.worker));
  idle_since_ = TimePoint::max();
  probing_.interval = kFirstProbe;
  const TimePoint now = Clock::now();
  probing_.next = now + probing_.interval;
  const bool all_are_here = std::popcount(protocol_.active()) == static_cast<int>(group_size_);
  // Also for a worker that asks for nothing: the shard reports whether its steps are done.
  want_shard(now, all_are_here ? Duration::zero() : kSettle);
}

void Session::on_inactive(const ps::ShardPeer& peer) {
  protocol_.leave(slot_of(peer.worker));
  must_forward_all_ = true;
  if (protocol_.active() != 0) return;  // the connection to the shard is opened again, and a line follows
  idle_since_ = Clock::now();
  log_(fmt::format("{}: 0 of them; the session ends after a minute without a worker", name()));
}

void Session::continue_peers() {
  peers_.for_each([this](ps::ShardPeer& peer) {
    handshake_.advance(peer);
    if (peer.phase == ps::ShardPeer::Phase::active && !peer.backlog.empty()) post_backlog(peer);
  });
  peers_.expire(Clock::now());
}

/// Keeps the connection to the shard, and sends what waits for it.
void Session::drive_shard(TimePoint now) {
  for (const uint32_t worker : shard_->take_refused())
    drop_worker(worker, "the shard has it on another path, or not in the run");
  for (const uint32_t worker : shard_->take_finished()) {
    if (worker >= first_worker_ && worker - first_worker_ < group_size_) protocol_.finish(slot_of(worker));
    must_forward_all_ = true;
  }
  if (const std::string why = shard_->failure(); !why.empty() && shard_->is_refused()) {
    give_up(fmt::format("the shard has refused the group: {}", why));
  } else if (!why.empty()) {
    lose_shard(why);
  } else if (shard_->is_open()) {
    shard_->advance();
    if (shard_->is_active() && !is_shard_active_) on_shard_active();
  }
  // A handshake under way ends first: workers that join one after the other must not prevent all of them.
  if (reach_.is_wanted && now >= reach_.open_at && (!shard_->is_open() || is_shard_active_)) open_shard(now);
  if (now >= reach_.give_up_at) give_up(fmt::format("the shard cannot be reached: {}", reach_.why_not));
  if (std::exchange(must_forward_all_, false)) {
    for (uint32_t bucket = 0; bucket < partition_.bucket_count(); ++bucket) forward(bucket);
  }
  post_sums();
  if (now >= probing_.next) probe(now);
}

void Session::want_shard(TimePoint now, Duration delay) {
  reach_.open_at = reach_.is_wanted ? std::min(reach_.open_at, now + delay) : now + delay;
  reach_.is_wanted = true;
  if (reach_.give_up_at == TimePoint::max()) reach_.give_up_at = now + kGiveUp;
}

void Session::open_shard(TimePoint now) {
  if (shard_->is_active()) shard_->regroup();
  if (shard_->is_open()) lose_shard("");
  reach_.is_wanted = false;
  std::vector<GroupMember> members;
  for_each_slot(protocol_.active(), [&](uint32_t slot) {
    const ps::ShardPeer::Member& member = peer_in(slot)->members.list.front();
    members.push_back({member.worker, member.incarnation, member.number, members_[slot]->key});
  });
  if (members.empty()) {  // they have left
    reach_.give_up_at = TimePoint::max();
    return;
  }
  connected_ = protocol_.active();
  first_incarnation_ = members.front().incarnation;
  const absl::Status opened = shard_->open(members);
  if (opened.ok()) return;
  if (reach_.why_not != message_of(opened))
    spdlog::warn("{}: {}; tries again for {} s", name(), message_of(opened), kGiveUp / std::chrono::seconds(1));
  reach_.why_not = message_of(opened);
  shard_->close();
  connected_ = 0;
  want_shard(now, kBetweenAttempts);
}

void Session::on_shard_active() {
  is_shard_active_ = true;
  reach_.give_up_at = TimePoint::max();
  reach_.refusal = Duration::zero();
  reach_.why_not.clear();
  shard_traffic_.path = shard_->path().connection_path() + " to shard";
  log_(fmt::format("{}: {} of them over {}", name(), std::popcount(connected_), shard_->describe()));
  std::vector<std::optional<uint32_t>> before;
  for (uint32_t bucket = 0; bucket < partition_.bucket_count(); ++bucket)
    before.push_back(shard_->path().bucket_before(bucket));
  protocol_.set_places(before);
  must_forward_all_ = true;
}

/// `why` "": it is opened again at once.
void Session::lose_shard(const std::string& why) {
  if (!why.empty()) {
    spdlog::info("{}: {} has ended: {}", name(), shard_->describe(), why);
    reach_.why_not = why;
  }
  // A connection that never served is not repeated without a pause.
  const Duration pause = is_shard_active_ ? Duration::zero() : Duration(kBetweenAttempts);
  shard_->close();
  is_shard_active_ = false;
  connected_ = 0;
  backlog_.clear();
  protocol_.on_shard_lost();
  if (!why.empty() && protocol_.waiting() != 0) want_shard(Clock::now(), pause);
}

/// The workers take another path.
void Session::give_up(const std::string& why) {
  spdlog::warn("{}: {}: its workers are sent to other paths", environment_.options.name, why);
  for_each_slot(protocol_.active(), [&](uint32_t slot) { drop_worker(first_worker_ + slot, why); });
  lose_shard("");
  reach_ = {.refusal = reach_.refusal};
  refuse_workers(why);
}

/// Without a message: a refusal would end the run of the worker.
void Session::drop_worker(ps::WorkerIndex worker, const std::string& why) {
  ps::ShardPeer* const peer = peers_.active(worker);
  if (peer == nullptr) return;
  spdlog::info("{}: closes {} to worker {}: {}", environment_.options.name, peer->connection->describe(), worker, why);
  peers_.start_closing(*peer, Clock::now());
}

/// Forwards what may leave in the place of this bucket.
void Session::forward(uint32_t bucket) {
  if (!is_shard_active_ || reach_.is_wanted) return;
  for (const uint32_t other : protocol_.at_place_of(bucket)) {
    if (const std::optional<GroupProtocol::Forward> next = protocol_.forward(other); next.has_value())
      send(other, *next);
  }
}

void Session::send(uint32_t bucket, const GroupProtocol::Forward& next) {
  GRADRAIL_CHECK((next.members & ~connected_) == 0);
  const ps::ElementRange range = partition_.bucket_range(bucket);
  std::byte* const sum = sums_.memory.data() + partition_.offset(bucket) * sizeof(float);
  absl::InlinedVector<const float*, ps::kMaxSumGroup> payloads;
  bool has_crc = false;
  float rate = ps::kAgreedRate;
  for_each_slot(next.members, [&](uint32_t slot) {
    const ps::ShardPeer& peer = *peer_in(slot);
    if (payloads.empty()) rate = peer.slot_headers()[bucket].rate;
    payloads.push_back(payload(peer, bucket, next.kind));
    has_crc = has_crc || peer.return_headers()[bucket].has_crc != 0;
  });
  const ps::PushFormat format = format_of(next.kind);
  const ps::PushFormat sum_format = ps::sum_format(format);
  const size_t payload_bytes = ps::has_payload(next.kind) ? ps::packed_bytes(range.count, sum_format) : 0;
  if (payload_bytes > 0) ps::write_group_sum(payloads, format, range.count, sums_.scratch, sum);
  worker::ShardPath& path = shard_->path();
  ps::SlotHeader& header = path.slot_headers()[bucket];
  header = {.kind = next.kind,
            .has_crc = has_crc,
            .format = sum_format.kind,
            .bucket = bucket,
            .payload_bytes = static_cast<uint32_t>(payload_bytes),
            .step = next.step,
            .incarnation = first_incarnation_,
            .base_version = next.base_version,
            .rate = rate,
            .members = {static_cast<uint32_t>(next.members), static_cast<uint32_t>(next.members >> 32)},
            .base_answer = shard_->answer_of(bucket)};
  shard_traffic_.bytes_out += payload_bytes + sizeof(header);
  if (has_crc && payload_bytes > 0) header.crc32c = crc32c(sum, payload_bytes);
  using Sent = worker::ShardPath::Sent;
  const bool is_in_place = payload_bytes == 0 || path.gradients_mapped();
  backlog_.push_back({bucket, payload_bytes, is_in_place ? Sent::payload : Sent::nothing});
  if (backlog_.size() == 1) post_sums();
}

void Session::post_sums() {
  using Sent = worker::ShardPath::Sent;
  while (!backlog_.empty()) {
    if (!shard_->is_active()) return backlog_.clear();  // the connection is lost, and all is sent again
    Pending& next = backlog_.front();
    const MemorySpan payload = {.data = sums_.memory.data() + partition_.offset(next.bucket) * sizeof(float),
                                .bytes = next.payload_bytes};
    next.sent = shard_->path().send_bucket(next.bucket, payload, next.sent);
    if (next.sent != Sent::all) return;
    backlog_.pop_front();
  }
}

void Session::probe(TimePoint now) {
  probing_.next = now + probing_.interval;
  probing_.interval = std::min(2 * probing_.interval, kLongestProbe);
  if (!is_shard_active_ || reach_.is_wanted) return;
  for (uint32_t bucket = 0; bucket < partition_.bucket_count(); ++bucket) {
    if (const std::optional<GroupProtocol::Forward> pull = protocol_.probe(bucket); pull.has_value())
      send(bucket, *pull);
  }
}

void Session::on_answer(uint64_t immediate) {
  if (immediate >= partition_.bucket_count()) return;
  const auto bucket = static_cast<uint32_t>(immediate);
  // A copy: the shard could change it between check and use.
  const ps::ReturnHeader header = shard_->path().return_headers()[bucket];
  if (header.magic != ps::ReturnHeader::kMagic) return;
  const std::optional<uint64_t> members = protocol_.on_answer(bucket, header.step, header.version);
  const size_t fp32_bytes = partition_.bucket_range(bucket).count * sizeof(float);
  shard_traffic_.bytes_in += (header.payload_bytes > 0 ? header.payload_bytes : fp32_bytes) + sizeof(header);
  if (members.has_value()) {
    if (const absl::Status taken = shard_->take_parameters(header, bucket); !taken.ok())
      return give_up(fmt::format("the parameters of bucket {} {}", bucket, message_of(taken)));
    partition_.on_changed(bucket);
    for_each_slot(*members, [&](uint32_t slot) { answer(slot, bucket, header); });
  }
  forward(bucket);
}

}  // namespace gradrail::aggregator
