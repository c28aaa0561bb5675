#include "ps/shard/exchange.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/optimizer/optimizer.h"
#include "ps/protocol/push_format.h"
#include "ps/protocol/return_format.h"

namespace gradrail::ps {
namespace {

uint64_t nanoseconds(Duration duration) {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count());
}

/// Prefetches a bucket. Another core has written header and gradient, and has read the parameters. The misses of a
/// small bucket overlap. They would follow each other otherwise.
void prefetch(const ShardPeer& peer, uint64_t bucket) {
  __builtin_prefetch(&peer.slot_headers()[bucket]);
  if (peer.lanes.empty() || peer.gradients_mapped == nullptr) return;
  __builtin_prefetch(peer.lanes[bucket].gradient);
  if (peer.lanes[bucket].target != nullptr) __builtin_prefetch(peer.lanes[bucket].target, 1);
}

/// A value of SlotHeader::rate. False for NaN.
bool is_rate(float rate) {
  return rate == kAgreedRate || (rate >= 0.0f && rate < std::numeric_limits<float>::infinity());
}

/// Whether a header is that of a push without rare features. An encoder alone reads base_answer.
bool is_plain(const SlotHeader& header, const SlotHeader& lane_header) {
  SlotHeader expected = lane_header;
  expected.step = header.step;
  expected.base_version = header.base_version;
  expected.rate = header.rate;
  static_assert(offsetof(SlotHeader, base_answer) == 52, "compare a new field here");
  return std::memcmp(&expected, &header, offsetof(SlotHeader, base_answer)) == 0 && is_rate(header.rate);
}

Arrival arrival_of(const ShardPeer& peer, const SlotHeader& header) {
  return {.worker = peer.worker,
          .incarnation = peer.incarnation,
          .kind = header.kind,
          .bucket = header.bucket,
          .step = header.step,
          .base_version = header.base_version};
}

}  // namespace

ShardExchange::ShardExchange(ShardEnvironment& environment, Partition& partition,
                             const RegisteredParameters& parameters, PeerTable& peers, PrimaryRole& primary)
    : environment_(environment),
      partition_(partition),
      parameters_(parameters),
      peers_(peers),
      primary_(primary),
      recorder_(environment.options.marks),
      non_finite_(environment, partition) {}

void ShardExchange::start() {
  std::vector<GraceWindows::Place> places;
  for (uint32_t bucket = 0; bucket < partition_.bucket_count(); ++bucket)
    places.push_back({.fragment = partition_.fragment(bucket), .before = partition_.places().before(bucket)});
  grace_.reset(partition_.mode().grace, places, Clock::now());
  non_finite_.reset();
}

void ShardExchange::make_lanes(ShardPeer& peer) const {
  peer.lanes.clear();
  if (partition_.device() != nullptr) return;
  const PushFormat format = partition_.push_format();
  for (uint32_t bucket = 0; bucket < partition_.bucket_count(); ++bucket) {
    const ElementRange range = partition_.bucket_range(bucket);
    ShardPeer::Lane lane = {.expected = {.kind = ArrivalKind::push,
                                         .format = format.kind,
                                         .bucket = bucket,
                                         .payload_bytes = static_cast<uint32_t>(packed_bytes(range.count, format)),
                                         .incarnation = peer.incarnation},
                            .gradient = gradient(peer, bucket, format),
                            .target = peer.parameters_mapped == nullptr ? nullptr : peer.mapped_parameter(range.first),
                            .offset = partition_.offset(bucket),
                            .count = range.count};
    // The size of a packed answer differs from step to step. A refusal is that of each post, too.
    if (peer.encoder == nullptr) {
      auto answer = peer.connection->prepare(answer_puts(peer, bucket, {}), bucket);
      if (answer.ok()) lane.answer = *std::move(answer);
    }
    peer.lanes.push_back(std::move(lane));
  }
  const Mode& mode = partition_.mode();
  peer.may_push_lone = partition_.later_results() == nullptr && peer.encoder == nullptr && !mode.grace.any() &&
                       mode.kind != ModeKind::ssp;
}

void ShardExchange::on_arrival(ShardPeer& peer, uint64_t immediate) {
  assert(peer.phase == ShardPeer::Phase::active);
  if (immediate >= partition_.bucket_count()) {
    return peers_.refuse(peer, fmt::format("no bucket {} in this shard", immediate));
  }
  prefetch(peer, immediate);
  // A copy: the worker could change its slot between check and use.
  const SlotHeader header = peer.slot_headers()[immediate];
  if (peer.may_push_lone && push_lone(peer, header, static_cast<uint32_t>(immediate))) return;
  mark_arrival(peer.worker, static_cast<uint32_t>(immediate), header.step);
  // The notice arrives in host memory: it does not order the writes of the NIC into GPU memory.
  if (peer.uses_gpu()) fail_shard_on_error(partition_.device()->flush_nic_writes());
  if (has_failed_) return;
  if (const absl::Status checked = check(peer, header, immediate); !checked.ok()) {
    read_failure();
    if (has_failed_) return;
    return peers_.refuse(peer, std::string(message_of(checked)));
  }
  // The program may have written into its parameters since the last answer: only the results after this request are in
  // them.
  if (peer.parameters_mapped != nullptr) peer.stored_version[immediate] = UINT64_MAX;
  peer.bytes_in += header.payload_bytes + sizeof(SlotHeader);
  peer.return_headers()[immediate].has_crc = header.has_crc;
  if (peer.encoder != nullptr) peer.encoder->on_arrival(header);
  // The time is needed only in modes that wait: their answers report the waiting time.
  if (!peer.arrived_at.empty()) peer.arrived_at[immediate] = decided_at_ = Clock::now();
  if (is_of_step(header.kind)) grace_.on_arrival(peer.worker, header.bucket, header.step, decided_at_);
  actions_.clear();
  partition_.protocol().on_arrival(arrival_of(peer, header), actions_);
  run_actions();
}

/// The short way of a push, for a peer with may_push_lone. False: nothing was done, and the push takes the general way.
bool ShardExchange::push_lone(ShardPeer& peer, const SlotHeader& header, uint32_t bucket) {
  const ShardPeer::Lane& lane = peer.lanes[bucket];
  const TimePoint taken_at = recorder_.is_on() ? Clock::now() : TimePoint();
  if (has_failed_ || primary_.is_replicating() || !is_plain(header, lane.expected)) return false;
  const std::optional<ShardProtocol::LonePush> push = partition_.protocol().on_lone_push(arrival_of(peer, header));
  if (!push.has_value()) return false;
  peer.bytes_in += header.payload_bytes + sizeof(SlotHeader);
  peer.is_in_steps = true;
  fail_shard_on_error(
      partition_.store().update(lane.offset, lane.count, absl::MakeConstSpan(&lane.gradient, 1),
                                absl::MakeConstSpan(&lane.target, lane.target == nullptr ? 0 : 1),
                                {.index = push->version, .rate = header.rate, .format = partition_.push_format()}));
  if (has_failed_) return true;
  if (const bool is_finite = partition_.store().last_is_finite(); !non_finite_.stays_finite(is_finite)) {
    const Action applied = {.kind = Action::Kind::apply,
                            .bucket = bucket,
                            .worker = peer.worker,
                            .step = header.step,
                            .version = push->version,
                            .contributors = {peer.worker}};
    const GradientTerm term = {peer.worker, lane.gradient};
    non_finite_.on_updated(applied, is_finite, absl::MakeConstSpan(&term, 1));
  }
  ++updates_;
  partition_.on_changed(bucket);
  if (recorder_.is_on()) {
    mark(Mark::Kind::noticed, peer.worker, bucket, header.step, noticed_at_);
    // No other gradient is expected: the step has all of them when this one is taken.
    mark(Mark::Kind::taken, peer.worker, bucket, header.step, taken_at);
    mark(Mark::Kind::applying, peer.worker, bucket, header.step, taken_at);
    mark(Mark::Kind::applied, peer.worker, bucket, header.step, Clock::now());
  }
  peer.return_headers()[bucket] = {.bucket = bucket,
                                   .step = header.step,
                                   .version = push->version,
                                   .staleness = static_cast<uint32_t>(std::min<uint64_t>(push->staleness, UINT32_MAX)),
                                   .incarnation = peer.incarnation};
  peer.stored_version[bucket] = push->version;
  post(peer, bucket);
  return true;
}

absl::Status ShardExchange::check(const ShardPeer& peer, const SlotHeader& header, uint64_t immediate) const {
  const auto bad = [&](std::string_view what) {
    return absl::InvalidArgumentError(fmt::format("slot header of bucket {}: {}", immediate, what));
  };
  if (header.magic != SlotHeader::kMagic) return bad("wrong magic");
  if (header.bucket != immediate) return bad("is for another bucket");
  if (header.incarnation != peer.incarnation) return bad("of another incarnation");
  if (header.kind < ArrivalKind::push || header.kind > ArrivalKind::absent) return bad("unknown kind");
  if (!is_rate(header.rate)) return bad("the learning rate is not a finite number, 0 or more");
  if (!(header.weight > 0.0f && header.weight < std::numeric_limits<float>::infinity()))
    return bad("the weight is not a finite number, more than 0");
  if (header.weight != 1.0f && partition_.device() != nullptr)
    return bad("a weight needs parameters in host memory (--ps_device host)");
  const PushFormat format = format_of(header.kind);
  if (header.format != format.kind) return bad("the format is not the one of the run");
  // The length is checked after the kind, which decides whether there is a payload.
  const uint64_t expected =
      has_payload(header.kind) ? packed_bytes(partition_.bucket_range(header.bucket).count, format) : 0;
  if (header.payload_bytes != expected) return bad("payload length is not the bucket's");
  if (header.has_crc != 0 && peer.is_on_device()) return bad("has a checksum, which GPU memory does not support");
  if (header.has_crc == 0 || !has_payload(header.kind)) return absl::OkStatus();
  GRADRAIL_ASSIGN_OR_RETURN(const uint32_t crc, payload_crc(peer, header.bucket, format));
  if (crc == header.crc32c) return absl::OkStatus();
  return absl::DataLossError(fmt::format("bucket {}: payload does not match its CRC32C", immediate));
}

absl::StatusOr<uint32_t> ShardExchange::payload_crc(const ShardPeer& peer, uint32_t bucket, PushFormat format) const {
  const float* const payload = gradient(peer, bucket, format);
  const size_t bytes = packed_bytes(partition_.bucket_range(bucket).count, format);
  return peer.uses_gpu() ? partition_.device()->crc32c(payload, bytes) : crc32c(payload, bytes);
}

/// The run decides and not the header: a worker could change its header between check and use.
PushFormat ShardExchange::format_of(ArrivalKind kind) const {
  return kind == ArrivalKind::push ? partition_.push_format() : PushFormat(PushFormat::fp32);
}

/// The payload of a bucket: in the worker's memory where that is mapped, else in its slot. Elements of another format
/// than fp32 begin there as well.
const float* ShardExchange::gradient(const ShardPeer& peer, uint32_t bucket, PushFormat format) const {
  assert(bucket < partition_.bucket_count());
  if (peer.gradients_mapped != nullptr) {
    const uint64_t first = partition_.bucket_range(bucket).first;
    return reinterpret_cast<const float*>(peer.mapped_gradient(partition_.map().elements(), first, format));
  }
  const SlotPlaces& places = partition_.places();
  const std::byte* const payload = peer.uses_gpu() ? peer.payload.slots.memory.data + places.payload_at(bucket)
                                                   : peer.slots.memory.data() + places.region_payload_at(bucket);
  return reinterpret_cast<const float*>(payload);
}

void ShardExchange::change_membership(const std::function<void(ShardProtocol&, Actions&)>& change) {
  if (!partition_.is_set_up()) return;
  actions_.clear();
  decided_at_ = Clock::now();
  change(partition_.protocol(), actions_);
  run_actions();
}

void ShardExchange::end_windows() {
  if (grace_.next_end() == TimePoint::max()) return;
  decided_at_ = Clock::now();
  while (const std::optional<GraceWindows::End> ended = grace_.take_ended(decided_at_)) {
    actions_.clear();
    partition_.protocol().on_window_end(ended->bucket, ended->step, actions_);
    run_actions();
  }
}

void ShardExchange::run_actions() {
  // actions_ stays as it is during the loop: refuse() drops pushes in the protocol and decides nothing.
  for (const Action& action : actions_) {
    // The answers behind a failed apply would show parameters that do not exist.
    if (has_failed_) return;
    switch (action.kind) {
      case Action::Kind::initialise:
        initialise(action);
        break;
      case Action::Kind::apply:
        apply(action);
        break;
      case Action::Kind::answer:
        if (!primary_.hold(action) && !hold_until_result(action)) answer(action);
        break;
      case Action::Kind::refuse:
        if (ShardPeer* peer = peers_.active(action.worker); peer != nullptr) peers_.refuse(*peer, action.reason);
        break;
      case Action::Kind::begin_window:
        grace_.begin(action.bucket, action.step, decided_at_);
        break;
    }
  }
}

/// Keeps the answer until the result of its bucket is there. False: the answer may leave now.
bool ShardExchange::hold_until_result(const Action& action) {
  LaterResults* const later = partition_.later_results();
  if (later == nullptr || later->try_end(partition_.offset(action.bucket))) return false;
  awaiting_[action.bucket].push_back(action);
  return true;
}

void ShardExchange::answer_results() {
  for (auto awaiting = awaiting_.begin(); awaiting != awaiting_.end();) {
    if (!partition_.later_results()->try_end(partition_.offset(awaiting->first))) {
      ++awaiting;
      continue;
    }
    const Actions answers = std::move(awaiting->second);
    awaiting = awaiting_.erase(awaiting);
    for (const Action& each : answers) answer(each);
  }
}

void ShardExchange::initialise(const Action& action) {
  GRADRAIL_CHECK(action.contributors.size() == 1);
  const ShardPeer* const chief = peers_.active(action.contributors[0]);
  GRADRAIL_CHECK(chief != nullptr);
  const absl::Span<const float> values(gradient(*chief, action.bucket, PushFormat::fp32),
                                       partition_.bucket_range(action.bucket).count);
  fail_shard_on_error(partition_.store().set(partition_.offset(action.bucket), values));
  non_finite_.on_initialised(action, values);
  partition_.on_changed(action.bucket);
  primary_.record_change(action.bucket);
}

void ShardExchange::apply(const Action& action) {
  grace_.on_applied(action.bucket, decided_at_);
  // Only absent workers contributed: the version is new, and the parameters are not.
  if (action.contributors.empty()) return primary_.record_change(action.bucket);
  const ElementRange range = partition_.bucket_range(action.bucket);
  mark(Mark::Kind::applying, action);
  absl::InlinedVector<GradientTerm, kMaxGradients> terms;
  absl::InlinedVector<float, kMaxGradients> weights;
  absl::InlinedVector<float*, kMaxTargets> targets;
  absl::InlinedVector<ShardPeer*, 1> refused;
  const ShardPeer& leader = rate_leader(action);
  // The rates may have changed since the check, as the gradients may.
  ParameterStore::Step step = {
      .index = action.version, .rate = leader.slot_headers()[action.bucket].rate, .format = partition_.push_format()};
  for (const WorkerIndex worker : action.contributors) {
    ShardPeer* const peer = peers_.active(worker);
    GRADRAIL_CHECK(peer != nullptr);  // the protocol drops a worker's gradients with its connection
    if (partition_.mode().kind == ModeKind::sync && peer != &leader &&
        are_different_rates(peer->slot_headers()[action.bucket].rate, step.rate)) {
      if (refused.empty() || refused.back() != peer) refused.push_back(peer);
      continue;
    }
    peer->is_in_steps = true;
    terms.push_back({worker, gradient(*peer, action.bucket, step.format)});
    weights.push_back(peer->slot_headers()[action.bucket].weight);
    // A state that the backup lacks must not reach a worker's memory: with a backup, answer() stores it there.
    // The result of a parent is not there yet.
    if (peer->parameters_mapped == nullptr || primary_.is_replicating()) continue;
    if (partition_.later_results() != nullptr) continue;
    targets.push_back(peer->mapped_parameter(range.first));
    peer->stored_version[action.bucket] = action.version;
  }
  fail_shard_on_error(update(action, step, terms, weights, targets));
  for (ShardPeer* const peer : refused) {
    peers_.refuse(*peer, different_rates(action.version, peer->worker, peer->slot_headers()[action.bucket].rate,
                                         leader.worker, step.rate));
  }
  non_finite_.on_updated(action, partition_.store().last_is_finite(), terms);
  ++updates_;
  partition_.on_changed(action.bucket);
  primary_.record_change(action.bucket);
  if (partition_.device() == nullptr) {
    mark(Mark::Kind::applied, action);
  } else if (recorder_.is_on()) {
    begun_.push_back({action, std::nullopt});
  }
}

/// The worker whose learning rate a step has: the lowest one that was in a step before. A worker that has just joined
/// follows it: a restarted program may begin its schedule at step 0.
const ShardPeer& ShardExchange::rate_leader(const Action& action) const {
  for (const WorkerIndex worker : action.contributors) {
    if (const ShardPeer& peer = *peers_.active(worker); peer.is_in_steps) return peer;
  }
  return *peers_.active(action.contributors[0]);
}

absl::Status ShardExchange::update(const Action& action, ParameterStore::Step step,
                                   absl::Span<const GradientTerm> terms, absl::Span<const float> weights,
                                   absl::Span<float* const> targets) {
  const size_t offset = partition_.offset(action.bucket);
  const size_t count = partition_.bucket_range(action.bucket).count;
  absl::InlinedVector<const float*, kMaxGradients> gradients;
  for (const GradientTerm& term : terms) gradients.push_back(term.values);
  const bool are_equal = std::all_of(weights.begin(), weights.end(), [&](float each) { return each == weights[0]; });
  if (!are_equal) step.weights = weights;
  if (partition_.later_results() != nullptr) step.weight = std::accumulate(weights.begin(), weights.end(), 0.0f);
  return partition_.store().update(offset, count, gradients, targets, step);
}

void ShardExchange::answer(const Action& action) {
  ShardPeer* const peer = peers_.active(action.worker);
  if (peer == nullptr) return;  // its connection is lost: the worker repeats its request when it returns
  if (action.dropped) ++dropped_;
  write_header(*peer, action);
  if (has_failed_) return;
  const ElementRange range = partition_.bucket_range(action.bucket);
  const bool is_mapped = peer->parameters_mapped != nullptr;
  // apply() has stored this version into the memory of contributors; others are answered with a copy.
  if (is_mapped && peer->stored_version[action.bucket] != action.version) {
    fail_shard_on_error(partition_.store().copy_out(partition_.offset(action.bucket), range.count,
                                                    peer->mapped_parameter(range.first)));
    if (has_failed_) return;
    peer->stored_version[action.bucket] = action.version;
  }
  // Now: later updates change the parameters, but not the memory of this worker.
  if (is_mapped) write_crc(*peer, action.bucket);
  StoreDevice* const device = partition_.device();
  if (device == nullptr) return complete(action);
  if (!is_mapped && !peer->answers_leave_gpu() && partition_.returns_parameters()) {
    device->begin_download(partition_.offset(action.bucket), range.count);
  }
  begun_.push_back({action, std::nullopt});
}

void ShardExchange::advance() {
  if (!awaiting_.empty()) answer_results();
  StoreDevice* const device = partition_.device();
  if (device == nullptr) return;
  read_failure();
  if (has_failed_) begun_.clear();
  if (begun_.empty()) return;
  if (!begun_.back().mark) {
    const DeviceTicket mark = device->mark_work();
    for (auto begun = begun_.rbegin(); begun != begun_.rend() && !begun->mark; ++begun) begun->mark = mark;
  }
  while (!begun_.empty()) {
    if (begun_.front().mark != ended_) {
      const absl::StatusOr<bool> ended = device->has_ended(*begun_.front().mark);
      fail_shard_on_error(ended.status());
      if (!ended.ok() || !*ended) return;
      ended_ = begun_.front().mark;
    }
    const Action action = std::move(begun_.front().action);
    begun_.pop_front();
    if (action.kind == Action::Kind::apply) {
      mark(Mark::Kind::applied, action);
    } else {
      complete(action);
    }
  }
}

void ShardExchange::forget(WorkerIndex worker) {
  for (auto& [bucket, answers] : awaiting_)
    std::erase_if(answers, [&](const Action& answer) { return answer.worker == worker; });
  std::erase_if(begun_, [&](const Begun& begun) {
    return begun.action.kind == Action::Kind::answer && begun.action.worker == worker;
  });
}

/// Completes an answer whose parameters are written.
void ShardExchange::complete(const Action& action) {
  ShardPeer* const peer = peers_.active(action.worker);
  if (peer == nullptr) return;
  if (peer->encoder != nullptr) {
    pack_parameters(*peer, action.bucket);
  } else if (peer->parameters_mapped == nullptr) {
    write_crc(*peer, action.bucket);
  }
  if (!has_failed_) post(*peer, action.bucket);
}

/// Posts an answer that is written. It waits behind a backlog, or without room: answers leave in their order.
void ShardExchange::post(ShardPeer& peer, uint32_t bucket) {
  peer.bytes_out += answer_bytes(peer, bucket) + sizeof(ReturnHeader);
  peer.posted[bucket] = 0;
  if (peer.backlog.empty() && post_answer(peer, bucket)) return;
  peer.backlog.push_back(bucket);
  peers_.update_unsettled(peer);
}

void ShardExchange::write_header(ShardPeer& peer, const Action& action) {
  assert(action.bucket < partition_.bucket_count());
  ReturnHeader& header = peer.return_headers()[action.bucket];
  const uint8_t has_crc = header.has_crc;  // set by on_arrival(): the worker requests a checksum by sending one
  header = {.bucket = action.bucket,
            .step = action.step,
            .version = action.version,
            .staleness = static_cast<uint32_t>(std::min<uint64_t>(action.staleness, UINT32_MAX)),
            .incarnation = peer.incarnation,
            .has_crc = has_crc,
            .dropped = action.dropped,
            .next_step = action.next_step};
  if (!peer.arrived_at.empty()) header.waited_ns = nanoseconds(decided_at_ - peer.arrived_at[action.bucket]);
}

/// Writes the checksum. If the parameters are on a GPU, it waits for all earlier updates.
void ShardExchange::write_crc(ShardPeer& peer, uint32_t bucket) {
  ReturnHeader& header = peer.return_headers()[bucket];
  if (header.has_crc == 0) return;
  const size_t bytes = partition_.bucket_range(bucket).count * sizeof(float);
  const absl::StatusOr<const float*> fresh =
      partition_.store().fresh_parameters(partition_.offset(bucket), partition_.bucket_range(bucket).count);
  fail_shard_on_error(fresh.status());
  if (!fresh.ok()) return;
  const float* sent = *fresh;
  if (const transport::LocalSlice copy = private_copy(peer, bucket); copy.region != nullptr) {
    std::byte* const target = peer.slots.memory.data() + copy.offset;
    std::memcpy(target, sent, bytes);
    sent = reinterpret_cast<const float*>(target);
  }
  header.crc32c = crc32c(sent, bytes);
}

/// Packs the parameters of an answer into the worker's slot, because its gradient has been used.
void ShardExchange::pack_parameters(ShardPeer& peer, uint32_t bucket) {
  const size_t count = partition_.bucket_range(bucket).count;
  const absl::StatusOr<const float*> fresh = partition_.store().fresh_parameters(partition_.offset(bucket), count);
  fail_shard_on_error(fresh.status());
  if (!fresh.ok()) return;
  std::byte* const target = peer.slots.memory.data() + private_copy(peer, bucket).offset;
  const ReturnEncoder::Packed packed = peer.encoder->pack(bucket, partition_.offset(bucket), {*fresh, count}, target);
  ReturnHeader& header = peer.return_headers()[bucket];
  header.payload_bytes = packed.bytes;
  header.answer = packed.answer;
  if (header.has_crc != 0) header.crc32c = crc32c(target, packed.bytes);
}

uint64_t ShardExchange::answer_bytes(const ShardPeer& peer, uint32_t bucket) const {
  return peer.encoder != nullptr ? peer.return_headers()[bucket].payload_bytes
                                 : partition_.bucket_range(bucket).count * sizeof(float);
}

/// Copy of an answer. A packed answer, or one with a checksum, must not change while it is sent, but pushes of other
/// workers change the parameters. The copy is in the worker's slot, because its gradient has been used. Without a
/// region: the answer is not copied.
transport::LocalSlice ShardExchange::private_copy(const ShardPeer& peer, uint32_t bucket) const {
  if (peer.return_headers()[bucket].has_crc == 0 && peer.encoder == nullptr) return {};
  if (peer.parameters_mapped != nullptr || peer.answers_leave_gpu()) return {};
  return {.region = peer.slots.region.get(),
          .offset = partition_.places().region_payload_at(bucket),
          .bytes = answer_bytes(peer, bucket)};
}

transport::LocalSlice ShardExchange::parameters_source(const ShardPeer& peer, uint32_t bucket) const {
  return {
      .region = peer.answers_leave_gpu() ? parameters_.gpu(peer.context_index) : parameters_.host(peer.context_index),
      .offset = partition_.offset(bucket) * sizeof(float),
      .bytes = partition_.bucket_range(bucket).count * sizeof(float)};
}

transport::RemoteSlice ShardExchange::parameters_target(const ShardPeer& peer, uint32_t bucket) const {
  if (peer.encoder != nullptr) {
    return {.region = peer.offer.returns,
            .offset = return_payload_at(partition_.bucket_count(), bucket, partition_.offset(bucket))};
  }
  return {.region = peer.offer.parameters, .offset = partition_.bucket_range(bucket).first * sizeof(float)};
}

/// The parameters of an answer, or their private copy, and its header. The worker has mapped parameters already.
absl::InlinedVector<transport::Transfer, 2> ShardExchange::answer_puts(const ShardPeer& peer, uint32_t bucket,
                                                                       const transport::LocalSlice& copy) const {
  absl::InlinedVector<transport::Transfer, 2> puts;
  if (peer.parameters_mapped == nullptr && partition_.returns_parameters()) {
    const transport::LocalSlice source = copy.region != nullptr ? copy : parameters_source(peer, bucket);
    puts.push_back({source, parameters_target(peer, bucket)});
  }
  // The puts of a connection are ordered: the notice of the header shows that the parameters have arrived.
  const size_t offset = bucket * sizeof(ReturnHeader);
  puts.push_back({{.region = peer.returns.region.get(), .offset = offset, .bytes = sizeof(ReturnHeader)},
                  {.region = peer.offer.returns, .offset = offset}});
  return puts;
}

/// False: the transport has no room. Any other failure is followed by peer_lost.
bool ShardExchange::post_answer(ShardPeer& peer, uint32_t bucket) {
  if (has_failed_) return true;
  assert(bucket < peer.posted.size());
  transport::PreparedPuts* const prepared = peer.lanes.empty() ? nullptr : peer.lanes[bucket].answer.get();
  const transport::LocalSlice copy = private_copy(peer, bucket);
  const absl::Status status =
      prepared != nullptr && copy.region == nullptr
          ? prepared->post(peer.posted[bucket])
          : transport::post_each(*peer.connection, answer_puts(peer, bucket, copy), bucket, peer.posted[bucket]);
  return status.ok() || !absl::IsResourceExhausted(status);
}

void ShardExchange::post_backlog(ShardPeer& peer) {
  while (!peer.backlog.empty() && post_answer(peer, peer.backlog.front())) peer.backlog.pop_front();
  peers_.update_unsettled(peer);
}

/// A call for one worker may have found the error of an update for another one.
void ShardExchange::read_failure() {
  if (StoreDevice* const device = partition_.device(); device != nullptr) fail_shard_on_error(device->failure());
}

/// A store that fails has lost the parameters of all workers: from now on no answer may show them.
void ShardExchange::fail_shard_on_error(const absl::Status& stored) {
  if (stored.ok() || has_failed_) return;
  has_failed_ = true;
  const std::string cause = fmt::format("{}: {}", environment_.options.name, message_of(stored));
  log_error("{}", cause);
  if (environment_.options.on_failed) environment_.options.on_failed(cause);
}

void ShardExchange::mark(Mark::Kind kind, WorkerIndex worker, uint32_t bucket, uint64_t step, TimePoint at) {
  recorder_.record({.step = step, .worker = worker, .shard = partition_.shard_index(), .bucket = bucket, .kind = kind},
                   at);
}

void ShardExchange::mark(Mark::Kind kind, const Action& action) {
  if (!recorder_.is_on()) return;
  for (const WorkerIndex worker : action.contributors) mark(kind, worker, action.bucket, action.step, Clock::now());
}

void ShardExchange::mark_arrival(WorkerIndex worker, uint32_t bucket, uint64_t step) {
  if (!recorder_.is_on()) return;
  mark(Mark::Kind::noticed, worker, bucket, step, noticed_at_);
  mark(Mark::Kind::taken, worker, bucket, step, Clock::now());
}

}  // namespace gradrail::ps
