// The exchange of one worker: push buckets as they become ready, wait for all answers.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "gpu/stream_marks.h"
#include "worker/client_impl.h"

namespace gradrail::worker {
namespace {

constexpr auto kNoticeEvery = std::chrono::seconds(10);
/// An exchange under way is done long before, unless it waits for a worker that may never come.
constexpr auto kStopGrace = std::chrono::seconds(2);
/// Whoever sends a signal for a dump has it within a second.
constexpr int kLookRoundMs = 500;

}  // namespace

bool Client::Impl::begin_push() {
  if (!started_) {
    fail(absl::FailedPreconditionError("exchange before start(): there are no parameters yet"));
    return false;
  }
  begin(ps::ArrivalKind::push);
  return true;
}

void Client::Impl::begin(ps::ArrivalKind kind) {
  GRADRAIL_CHECK(!exchanging_);
  exchange_start_ = Clock::now();
  if (exchange_start_ >= next_come_back_) come_back();  // nothing is under way: the moment to change paths
  answer_dump();
  if (const int64_t told = told_base_; sums() && told != joined_base_) base_step_ = joined_base_ = told;
  exchanging_ = true;
  published_.begun(exchange_start_);
  kind_ = kind;
  if (kind == ps::ArrivalKind::push) ++step_;
  mark(Mark::Kind::begun);
  waited_ns_ = 0;
  dropped_bucket_ = false;
  outstanding_ = 0;
  ready_.assign(schema_.size(), false);
  for (const auto& link : links_) {
    for (ShardLink::Bucket& bucket : link->buckets) {
      bucket.tensors_missing = bucket.tensors;
      bucket.pushed = bucket.payload_posted = false;
      bucket.outstanding = true;
      ++outstanding_;
    }
  }
}

void Client::Impl::mark(Mark::Kind kind) {
  recorder_.record({.step = step_, .worker = options_.task_index, .kind = kind});
}

void Client::Impl::mark(Mark::Kind kind, const ShardLink& link, uint32_t bucket_index) {
  recorder_.record(
      {.step = step_, .worker = options_.task_index, .shard = link.shard_index, .bucket = bucket_index, .kind = kind});
}

void Client::Impl::ready(size_t tensor_index) {
  if (!exchanging_ && !begin_push()) return;
  if (ready_[tensor_index]) return;  // said before: counting it again would push too early
  ready_[tensor_index] = true;
  for (ShardLink* link : touched_[tensor_index]) {
    // Last bucket first: the order in which the backward pass completes them.
    for (size_t i = link->buckets.size(); i-- > 0;) {
      ShardLink::Bucket& bucket = link->buckets[i];
      if (bucket.range.first >= tensor_first_[tensor_index + 1]) continue;
      if (bucket.range.first + bucket.range.count <= tensor_first_[tensor_index]) break;
      if (bucket.tensors_missing > 0 && --bucket.tensors_missing == 0) push(*link, static_cast<uint32_t>(i));
    }
  }
}

void Client::Impl::exchange() {
  if (!exchanging_ && !begin_push()) return;
  for (const auto& link : links_) {
    for (size_t i = link->buckets.size(); i-- > 0;) {
      if (!link->buckets[i].pushed) push(*link, static_cast<uint32_t>(i));
    }
  }
}

void Client::Impl::push(ShardLink& link, uint32_t bucket_index) {
  ShardLink::Bucket& bucket = link.buckets[bucket_index];
  if (bucket.pushed) return;
  bucket.pushed = true;
  mark(Mark::Kind::pushed, link, bucket_index);
  if (!link.is_up()) return;  // repeated once the link has moved
  if (!stages(link)) return send(link, bucket_index);
  staged_.push_back({&link, bucket_index, gpu_->download_gradients(bucket.range)});
  send_staged();
}

bool Client::Impl::stages(const ShardLink& link) const {
  // The chief's values are in the host's memory as they are.
  return gpu_ != nullptr && kind_ == ps::ArrivalKind::push && link.path->way() == GpuWay::staged;
}

/// Sends what has come to the host, in order; true while something is on its way there.
bool Client::Impl::send_staged() {
  while (!staged_.empty() && gpu_->is_done(staged_.front().ticket)) {
    const Staged next = staged_.front();
    staged_.pop_front();
    if (const absl::Status copied = gpu_->status(); !copied.ok()) {
      staged_.clear();
      fail(copied);
    } else if (next.link->is_up()) {
      mark(Mark::Kind::copied, *next.link, next.bucket_index);
      send(*next.link, next.bucket_index);
    }
  }
  return !staged_.empty();
}

void Client::Impl::send(ShardLink& link, uint32_t bucket_index) {
  ShardLink::Bucket& bucket = link.buckets[bucket_index];
  const bool has_payload = kind_ != ps::ArrivalKind::pull;
  const auto payload_bytes = static_cast<uint32_t>(has_payload ? bucket.range.count * sizeof(float) : 0);
  const bool checksums = options_.checksums && link.path->way() == GpuWay::staged;  // else the host sees nothing
  ps::SlotHeader& header = link.path->slot_headers()[bucket_index];
  header = {.kind = kind_,
            .has_crc = checksums,
            .bucket = bucket_index,
            .payload_bytes = payload_bytes,
            .step = step_,
            .incarnation = incarnation_,
            .base_version = bucket.version};
  if (checksums) {
    header.crc32c = crc32c(gradients_.data() + bucket.range.first * sizeof(float), payload_bytes);
  }
  bucket.payload_posted = !has_payload || link.path->gradients_mapped();
  link.bytes->pushed += payload_bytes + sizeof(header);
  if (!backlog_.empty() || !post(link, bucket_index)) backlog_.push_back({&link, bucket_index});
}

bool Client::Impl::post(ShardLink& link, uint32_t bucket_index) {
  if (!link.is_up()) return true;  // repeated once the link has moved
  ShardPath& path = *link.path;
  ShardLink::Bucket& bucket = link.buckets[bucket_index];
  if (!bucket.payload_posted) {
    const absl::Status posted = path.connection().put(path.gradients(bucket.range), path.payload(bucket.range), {});
    if (absl::IsResourceExhausted(posted)) return false;
    bucket.payload_posted = true;  // any other failure: peer_lost is on its way
  }
  const size_t offset = bucket_index * sizeof(ps::SlotHeader);
  const absl::Status posted =
      path.connection().put({.region = &path.headers_region(), .offset = offset, .bytes = sizeof(ps::SlotHeader)},
                            {.region = path.slots(), .offset = offset}, {.immediate = bucket_index});
  if (absl::IsResourceExhausted(posted)) return false;
  mark(Mark::Kind::posted, link, bucket_index);
  return true;
}

void Client::Impl::post_backlog() {
  while (!backlog_.empty() && post(*backlog_.front().link, backlog_.front().bucket_index)) backlog_.pop_front();
}

void Client::Impl::take(const transport::Completion& completion) {
  using Kind = transport::Completion::Kind;
  auto& path = *reinterpret_cast<ShardPath*>(completion.connection->user_data());
  const bool in_use = path.phase() == ShardPath::Phase::active;
  switch (completion.kind) {
    case Kind::put_arrived:
      in_use ? take_answer(path.link(), completion.immediate) : path.on_check(completion.immediate);
      break;
    case Kind::message:
      path.on_message(completion.message);
      if (in_use) {
        fail(
            absl::FailedPreconditionError(fmt::format("shard {} at {} refused this worker: {}", path.link().shard_index,
                                                      controls_[path.link().ps_index]->address(), path.why())));
      }
      break;
    case Kind::peer_lost:
      path.on_lost(message_of(completion.cause));
      link_lost_ = link_lost_ || in_use;
      break;
    default:
      break;  // no put_done or get_done is asked for
  }
}

void Client::Impl::take_answer(ShardLink& link, uint64_t immediate) {
  if (immediate >= link.buckets.size()) return;
  ShardLink::Bucket& bucket = link.buckets[immediate];
  const ps::ReturnHeader header = link.path->return_headers()[immediate];
  const bool expected = header.magic == ps::ReturnHeader::kMagic && header.incarnation == incarnation_ &&
                        header.step == step_ && bucket.outstanding;
  if (!expected) return;  // a repeated answer to an exchange that is over
  mark(Mark::Kind::answered, link, static_cast<uint32_t>(immediate));
  const size_t bytes = bucket.range.count * sizeof(float);
  if (header.has_crc != 0 && crc32c(parameters_.data() + bucket.range.first * sizeof(float), bytes) != header.crc32c) {
    fail(absl::DataLossError(
        fmt::format("parameters of shard {}, bucket {} do not match their CRC32C", link.shard_index, immediate)));
  }
  if (gpu_ != nullptr) {
    if (link.path->way() == GpuWay::staged) gpu_->upload_parameters(bucket.range);
    if (link.path->writes_by_nic()) gpu_->nic_wrote();
  }
  waited_ns_ = std::max(waited_ns_, header.waited_ns);
  dropped_bucket_ = dropped_bucket_ || header.dropped != 0;
  bucket.version = header.version;
  bucket.outstanding = false;
  --outstanding_;
  link.bytes->returned += bytes + sizeof(header);
  if (immediate == 0 && &link == links_[0].get() && kind_ == ps::ArrivalKind::push) {
    stats_.staleness_sum += header.staleness;
    stats_.staleness_max = std::max(stats_.staleness_max, header.staleness);
    ++stats_.staleness[std::min<uint64_t>(header.staleness, stats_.staleness.size() - 1)];
  }
}

void Client::Impl::progress() {
  // What a network device fetches from GPU memory needs no hand of ours.
  const bool may_stage =
      std::any_of(links_.begin(), links_.end(), [&](const auto& link) { return link->is_up() && stages(*link); });
  if (!exchanging_ || !may_stage) return;
  send_staged();
  post_backlog();
  transport::Completion completions[16];
  const size_t count = wait_set_.poll(absl::MakeSpan(completions));
  for (size_t i = 0; i < count; ++i) take(completions[i]);
}

absl::Status Client::Impl::wait() {
  if (may_rejoin()) return rejoin();
  if (!exchanging_) return failure();
  transport::Completion completions[32];
  TimePoint notice_at = exchange_start_ + kNoticeEvery;
  gpu::WaitInTurns staging_wait;
  while (outstanding_ > 0) {
    if (may_rejoin()) return rejoin();
    GRADRAIL_RETURN_IF_ERROR(failure());
    answer_dump();
    if (link_lost_) {
      const absl::Status moved = move_lost_links();
      const uint64_t takeovers = stats_.takeovers;
      if (may_rejoin()) return rejoin();
      if (stats_.takeovers == takeovers) GRADRAIL_RETURN_IF_ERROR(moved);
    }
    if (kind_ == ps::ArrivalKind::pull && !initialised_ && is_chief()) offer_instead();
    if (!backlog_.empty()) post_backlog();
    const bool staging = send_staged();
    const bool in_need = advance_trials() || !backlog_.empty();
    const auto patience = std::chrono::milliseconds(staging ? 0 : in_need ? 1 : kLookRoundMs);
    const size_t count = wait_set_.wait(absl::MakeSpan(completions), Clock::now() + patience);
    for (size_t i = 0; i < count; ++i) take(completions[i]);
    if (count == 0 && staging) staging_wait.turn();
    if (count == 0 && asked_to_stop() && Clock::now() >= exchange_start_ + kStopGrace) {
      return absl::CancelledError(fmt::format("stopped while waiting for the answer to step {}", step_));
    }
    if (count == 0 && Clock::now() >= notice_at) {
      say_whom_we_wait_for();
      notice_at = Clock::now() + kNoticeEvery;
    }
  }
  return finish();
}

absl::Status Client::Impl::finish() {
  exchanging_ = false;
  published_.ended();
  GRADRAIL_RETURN_IF_ERROR(failure());
  if (gpu_ != nullptr) {
    if (const absl::Status settled = gpu_->settle(); !settled.ok()) fail(settled);
    GRADRAIL_RETURN_IF_ERROR(failure());
  }
  mark(Mark::Kind::done);
  if (kind_ != ps::ArrivalKind::push) return absl::OkStatus();
  const TimePoint now = Clock::now();
  stats_.exchange.record(std::chrono::duration_cast<std::chrono::nanoseconds>(now - exchange_start_).count());
  ++stats_.exchange_count;
  stats_.wait_ns += waited_ns_;
  if (dropped_bucket_) catch_up();
  remember_version();
  if (published_.is_due(now)) published_.publish(stats(), now);
  return absl::OkStatus();
}

/// Part of this gradient came too late: the others are further on (ps/protocol.h, "Joining").
void Client::Impl::catch_up() {
  ++stats_.dropped;
  uint64_t lowest = UINT64_MAX;
  for (const auto& link : links_) {
    for (const ShardLink::Bucket& bucket : link->buckets) lowest = std::min(lowest, bucket.version);
  }
  step_ = std::max(step_, lowest);
}

void Client::Impl::say_whom_we_wait_for() {
  const absl::StatusOr<ps::proto::StatsReply> stats = controls_[0]->stats();
  if (!stats.ok()) return;  // the heartbeat tells when it is lost
  if (kind_ == ps::ArrivalKind::pull && !initialised_) {
    return options_.notice(
        fmt::format("waiting for the chief (worker {}) to initialise the parameters", chief_.load()));
  }
  if (!stats->waiting_for().empty()) {
    return options_.notice(fmt::format("step {}: waiting for {}", step_, fmt::join(stats->waiting_for(), ", ")));
  }
  options_.notice(fmt::format("step {}: waiting for {}", step_, controls_[0]->name()));
}

absl::Status Client::Impl::may_begin(std::string_view what) {
  if (started_) go_to_standbys();
  GRADRAIL_RETURN_IF_ERROR(failure());
  if (!exchanging_) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format("{}: an exchange is under way, wait() for it first", what));
}

absl::Status Client::Impl::start() {
  GRADRAIL_RETURN_IF_ERROR(may_begin("start"));
  if (initialised_ || !is_chief()) return pull();
  GRADRAIL_RETURN_IF_ERROR(prepare_offer());
  begin(ps::ArrivalKind::initialise);
  exchange();
  GRADRAIL_RETURN_IF_ERROR(wait());
  begun();
  return absl::OkStatus();
}

/// Offers go out from the gradients' memory, and may have to when part of another's values has arrived.
absl::Status Client::Impl::prepare_offer() {
  if (started_) GRADRAIL_RETURN_IF_ERROR(fetch());  // of a run that goes on they may be in GPU memory only
  std::memcpy(gradients_.data(), parameters_.data(), parameters_.bytes());
  return gpu_ != nullptr ? gpu_->upload_initial() : absl::OkStatus();
}

void Client::Impl::begun() {
  if (!started_ && !sums()) seen_.push_back({global_step(), position()});
  initialised_ = started_ = true;
}

/// The chief went before there were values: ours go out instead of the pull, for what of it is unanswered.
void Client::Impl::offer_instead() {
  kind_ = ps::ArrivalKind::initialise;
  backlog_.clear();
  for (const auto& link : links_) {
    for (uint32_t i = static_cast<uint32_t>(link->buckets.size()); i-- > 0;) {
      link->buckets[i].pushed = false;
      if (link->buckets[i].outstanding) push(*link, i);
    }
  }
}

absl::Status Client::Impl::pull() {
  GRADRAIL_RETURN_IF_ERROR(may_begin("pull"));
  if (!initialised_) GRADRAIL_RETURN_IF_ERROR(prepare_offer());  // should it fall to us
  begin(ps::ArrivalKind::pull);
  exchange();
  GRADRAIL_RETURN_IF_ERROR(wait());
  begun();
  return absl::OkStatus();
}

}  // namespace gradrail::worker
