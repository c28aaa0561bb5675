#include "worker/client/exchange.h"

#include <algorithm>
#include <cassert>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/status.h"
#include "fmt/format.h"

namespace gradrail::worker {

Exchange::Exchange(const ClientOptions& options, const Identity& identity, ModelMemory& memory, RunFailure& failure,
                   Telemetry& telemetry, PathManager& paths)
    : options_(options),
      identity_(identity),
      memory_(memory),
      failure_(failure),
      telemetry_(telemetry),
      paths_(paths),
      fragments_(memory.layout().fragments.size()),
      rate_(options.optimizer.learning_rate) {
  for (const Index fragment : memory_.layout().tensor_fragment) ++fragments_[fragment].tensor_count;
}

absl::Status Exchange::cut_model() {
  GRADRAIL_CHECK(shards_.empty());
  const auto shard_count = static_cast<uint32_t>(paths_.links().size());
  GRADRAIL_ASSIGN_OR_RETURN(ps::ShardMap cut, ps::ShardMap::cut(memory_.layout(), shard_count, options_.bucket_bytes,
                                                                options_.compression.push));
  const auto shared = std::make_shared<const ps::ShardMap>(std::move(cut));
  const ps::ShardMap& map = *shared;
  touched_.resize(memory_.schema().size());
  ready_.assign(memory_.schema().size(), false);
  // The steps stay until set_first_steps(): position() needs them.
  for (Fragment& fragment : fragments_) fragment.bucket_count = 0;
  shards_.resize(shard_count);
  for (uint32_t index = 0; index < shard_count; ++index) {
    ShardLink& link = *paths_.links()[index];
    GRADRAIL_CHECK(link.shard_index == index);  // answers find their shard by this index
    link.map = shared;
    link.range = map.shard(index);
    link.bucket_count = map.bucket_count(index);
    link.returns = options_.compression.returns;
    shards_[index].link = &link;
    for (uint32_t i = 0; i < link.bucket_count; ++i) {
      shards_[index].buckets.push_back({.range = map.bucket(index, i), .fragment = map.fragment(index, i)});
      ++fragments_[map.fragment(index, i)].bucket_count;
    }
    count_tensors(shards_[index]);
  }
  return absl::OkStatus();
}

/// Tensors are not aligned to buckets: a bucket is complete when the last tensor that overlaps it is.
void Exchange::count_tensors(Shard& shard) {
  for (size_t tensor = 0; tensor < memory_.schema().size(); ++tensor) {
    const ps::ElementRange range = memory_.range(tensor);
    bool touches = false;
    for (Bucket& bucket : shard.buckets) {
      if (bucket.range.first >= range.first + range.count) continue;
      if (bucket.range.first + bucket.range.count <= range.first) continue;
      ++bucket.tensors;
      touches = true;
    }
    if (touches) touched_[tensor].push_back(shard.link->shard_index);
  }
}

void Exchange::clear() {
  // Work of the GPU that is under way would read and write memory that this worker uses next. finish() has its error.
  if (!prepared_.empty()) memory_.gpu()->finish_transfers().IgnoreError();
  prepared_.clear();
  backlog_.clear();
  touched_.clear();
  shards_.clear();
  for (Fragment& fragment : fragments_) fragment.under_way = false;
}

template <typename Function>
void Exchange::for_each_bucket(Index fragment, Function function) {
  for (Shard& shard : shards_) {
    // Last bucket first: the backward pass completes them in this order.
    for (auto i = static_cast<uint32_t>(shard.buckets.size()); i-- > 0;) {
      if (shard.buckets[i].fragment == fragment) function(shard, i, shard.buckets[i]);
    }
  }
}

void Exchange::begin(Index index, ps::ArrivalKind kind, TimePoint now) {
  Fragment& fragment = fragments_[index];
  GRADRAIL_CHECK(!fragment.under_way);
  // A bucket can be answered twice, as a pull and as an offer, and leave one of them behind.
  const auto is_its = [&](const Pending& p) { return p.shard->buckets[p.bucket_index].fragment == index; };
  if (!backlog_.empty()) std::erase_if(backlog_, is_its);
  if (!prepared_.empty()) std::erase_if(prepared_, is_its);
  if (!is_under_way()) telemetry_.begin_exchange(now);
  fragment.begun_at = now;
  fragment.under_way = true;
  fragment.kind = kind;
  // Pulls and offers have no step number: the shard only echoes the number.
  if (kind == ps::ArrivalKind::push) {
    ++fragment.step;
    fragment.has_pushed = true;
  }
  telemetry_.mark(Mark::Kind::begun, fragment.step, now);
  fragment.waited_ns = 0;
  fragment.dropped = false;
  fragment.late_count = 0;
  fragment.late_staleness = 0;
  fragment.undeclared = fragment.tensor_count;
  for (size_t tensor = 0; tensor < ready_.size(); ++tensor) {
    if (fragment_of(tensor) == index) ready_[tensor] = false;
  }
  // All buckets are outstanding from the start: wait() before exchange() must not end before the gradients have left.
  fragment.outstanding = fragment.bucket_count;
  for_each_bucket(index, [&](Shard&, uint32_t, Bucket& bucket) {
    bucket.tensors_missing = bucket.tensors;
    bucket.elements_missing = bucket.range.count;
    bucket.rate = rate_;
    bucket.weight = weight_;
    bucket.packed.reset();
    bucket.begin_step(kind);
  });
}

void Exchange::Bucket::begin_step(ps::ArrivalKind step_kind) {
  kind = step_kind;
  pushed = false;
  posted = 0;
  outstanding = true;
  is_late = has_pull = false;
}

void Exchange::ready(size_t tensor_index) {
  GRADRAIL_CHECK(tensor_index < ready_.size());
  Fragment& fragment = fragments_[fragment_of(tensor_index)];
  GRADRAIL_CHECK(fragment.under_way);
  if (ready_[tensor_index]) return;  // a second count of the same tensor would push its buckets too early
  ready_[tensor_index] = true;
  if (fragment.undeclared > 0) --fragment.undeclared;
  const ps::ElementRange tensor = memory_.range(tensor_index);
  for (const uint32_t index : touched_[tensor_index]) {
    Shard& shard = shards_[index];
    for (size_t i = shard.buckets.size(); i-- > 0;) {
      Bucket& bucket = shard.buckets[i];
      if (bucket.range.first >= tensor.first + tensor.count) continue;
      if (bucket.range.first + bucket.range.count <= tensor.first) break;
      if (bucket.tensors_missing > 0 && --bucket.tensors_missing == 0) push_bucket(shard, static_cast<uint32_t>(i));
    }
  }
}

void Exchange::ready(ps::ElementRange part, float rate, float weight) {
  for (Shard& shard : shards_) {
    for (size_t i = shard.buckets.size(); i-- > 0;) {
      Bucket& bucket = shard.buckets[i];
      const uint64_t first = std::max(bucket.range.first, part.first);
      const uint64_t end = std::min(bucket.range.first + bucket.range.count, part.first + part.count);
      if (first >= end) continue;
      bucket.rate = rate;
      bucket.weight = weight;
      GRADRAIL_CHECK(end - first <= bucket.elements_missing);
      bucket.elements_missing -= end - first;
      if (bucket.elements_missing == 0) push_bucket(shard, static_cast<uint32_t>(i));
    }
  }
}

void Exchange::push_all(Index fragment) {
  GRADRAIL_CHECK(fragments_[fragment].under_way);
  fragments_[fragment].undeclared = 0;
  for_each_bucket(fragment, [&](Shard& shard, uint32_t i, Bucket&) { push_bucket(shard, i); });
}

bool Exchange::is_under_way() const {
  return std::any_of(fragments_.begin(), fragments_.end(), [](const Fragment& each) { return each.under_way; });
}

void Exchange::push_bucket(Shard& shard, uint32_t bucket_index) {
  Bucket& bucket = shard.buckets[bucket_index];
  if (bucket.pushed) return;
  bucket.pushed = true;
  telemetry_.mark(Mark::Kind::pushed, step(bucket.fragment), shard.link->shard_index, bucket_index);
  if (!shard.link->is_up()) return;  // on_path_lost() repeats it
  const std::optional<uint32_t> before = shard.link->path->bucket_before(bucket_index);
  if (before.has_value() && shard.buckets[*before].outstanding) return;  // its answer starts this bucket
  start_bucket(shard, bucket_index);
}

/// The place of a bucket at its shard is free for the bucket that leaves after it.
void Exchange::start_next_at_place(Shard& shard, uint32_t bucket_index) {
  const std::optional<uint32_t> next = shard.link->path->bucket_after(bucket_index);
  if (next.has_value() && shard.buckets[*next].pushed && shard.buckets[*next].outstanding) start_bucket(shard, *next);
}

void Exchange::start_bucket(Shard& shard, uint32_t bucket_index) {
  Bucket& bucket = shard.buckets[bucket_index];
  // A push over another path, or in a further step, repeats the same bits.
  if (format(bucket) != PushFormat::fp32 && !bucket.packed) bucket.packed = memory_.pack(bucket.range);
  if (!waits_for_gpu(*shard.link, bucket.kind)) return submit(shard, bucket_index);
  const bool is_staged = this->is_staged(*shard.link, bucket.kind);
  prepared_.push_back(
      {&shard, bucket_index, is_staged ? memory_.gpu()->download_gradients(bucket.range) : bucket.packed.value()});
  submit_prepared();
}

bool Exchange::is_staged(const ShardLink& link, ps::ArrivalKind kind) const {
  // Initial values are in the host's memory already, and other kinds have no payload.
  return memory_.gpu() != nullptr && kind == ps::ArrivalKind::push && link.path->way() == GpuTransfer::staged;
}

/// The GPU has to pack the bucket or to copy it before it can leave.
bool Exchange::waits_for_gpu(const ShardLink& link, ps::ArrivalKind kind) const {
  const bool is_packed = kind == ps::ArrivalKind::push && memory_.push_format() != PushFormat::fp32;
  return is_staged(link, kind) || (memory_.gpu() != nullptr && is_packed);
}

/// Submits in order what the GPU has prepared; true while it prepares something.
bool Exchange::submit_prepared() {
  while (!prepared_.empty() && memory_.gpu()->is_done(prepared_.front().ready)) {
    const Pending next = prepared_.front();
    prepared_.pop_front();
    if (const absl::Status copied = memory_.gpu()->status(); !copied.ok()) {
      // Copies and packing have no effect after the first error: the data would belong to an earlier step.
      prepared_.clear();
      failure_.fail(copied);
    } else if (next.shard->link->is_up()) {
      const uint64_t step = this->step(next.shard->buckets[next.bucket_index].fragment);
      telemetry_.mark(Mark::Kind::copied, step, next.shard->link->shard_index, next.bucket_index);
      submit(*next.shard, next.bucket_index);
    }
  }
  return !prepared_.empty();
}

void Exchange::submit(Shard& shard, uint32_t bucket_index) {
  assert(bucket_index < shard.buckets.size() && shard.link->is_up());
  Bucket& bucket = shard.buckets[bucket_index];
  assert(bucket.pushed);  // invariant 2
  ShardPath& path = *shard.link->path;
  const PushFormat format = this->format(bucket);
  const uint64_t payload_elements = ps::has_payload(bucket.kind) ? bucket.range.count : 0;
  const auto payload_bytes = static_cast<uint32_t>(ps::packed_bytes(payload_elements, format));
  // Only staged payloads pass through host memory, where the checksum can be computed.
  const bool checksums = options_.transport.checksums && path.way() == GpuTransfer::staged;
  ps::SlotHeader& header = path.slot_headers()[bucket_index];
  header = {.kind = bucket.kind,
            .has_crc = checksums,
            .format = format.kind,
            .bucket = bucket_index,
            .payload_bytes = payload_bytes,
            .step = bucket.sent_step(step(bucket.fragment)),
            .incarnation = identity_.incarnation(),
            .base_version = bucket.version,
            .rate = bucket.rate,
            .weight = bucket.weight,
            .base_answer = bucket.answer};
  if (checksums) header.crc32c = crc32c(memory_.payload(bucket.range, format).data, payload_bytes);
  bucket.posted = 0;
  shard.link->bytes->pushed += payload_bytes + sizeof(header);
  shard.link->bytes->pushed_fp32 += payload_elements * sizeof(float) + sizeof(header);
  // The bucket waits behind an existing backlog: invariant 3.
  if (!backlog_.empty() || !post_bucket(shard, bucket_index)) backlog_.push_back({&shard, bucket_index});
}

/// False: the path has no room now.
bool Exchange::post_bucket(Shard& shard, uint32_t bucket_index) {
  if (!shard.link->is_up()) return true;  // on_path_lost() repeats it
  Bucket& bucket = shard.buckets[bucket_index];
  ShardPath& path = *shard.link->path;
  // A shard that maps the gradients reads them in place: only the header is put.
  const bool sends_gradients = ps::has_payload(bucket.kind) && !path.gradients_mapped();
  const MemorySpan gradients = sends_gradients ? memory_.payload(bucket.range, format(bucket)) : MemorySpan{};
  if (!path.send_bucket(bucket_index, gradients, bucket.posted)) return false;
  telemetry_.mark(Mark::Kind::posted, step(bucket.fragment), shard.link->shard_index, bucket_index);
  return true;
}

bool Exchange::post_backlog() {
  while (!backlog_.empty() && post_bucket(*backlog_.front().shard, backlog_.front().bucket_index)) backlog_.pop_front();
  return submit_prepared();
}

void Exchange::progress() {
  if (!is_under_way()) return;
  // Gradients in fp32 that a network device or the shard's GPU fetches from GPU memory need no help from here.
  const bool may_wait = std::any_of(shards_.begin(), shards_.end(), [&](const Shard& shard) {
    return shard.link->is_up() && waits_for_gpu(*shard.link, ps::ArrivalKind::push);
  });
  if (!may_wait) return;
  post_backlog();
  paths_.poll_events();
}

void Exchange::on_answer(ShardLink& link, uint64_t immediate) {
  GRADRAIL_CHECK(link.shard_index < shards_.size());
  Shard& shard = shards_[link.shard_index];
  // The immediate and the header originate in another process. Neither can make this side access memory out of bounds
  // or count a bucket twice; invalid ones are ignored.
  if (immediate >= shard.buckets.size()) return;
  const auto bucket_index = static_cast<uint32_t>(immediate);
  Bucket& bucket = shard.buckets[bucket_index];
  // A copy: the shard could change it between check and use.
  const ps::ReturnHeader header = link.path->return_headers()[bucket_index];
  const bool expected = header.magic == ps::ReturnHeader::kMagic && header.incarnation == identity_.incarnation() &&
                        header.step == bucket.sent_step(step(bucket.fragment)) && bucket.outstanding;
  if (!expected) return;  // a repeated answer to an exchange that is over
  telemetry_.mark(Mark::Kind::answered, step(bucket.fragment), link.shard_index, bucket_index);
  if (const absl::Status stored = store_answer(link, header, bucket_index); !stored.ok()) {
    failure_.fail(absl::DataLossError(
        fmt::format("parameters of shard {}, bucket {} {}", link.shard_index, bucket_index, message_of(stored))));
  }
  if (GpuVariables* gpu = memory_.gpu(); gpu != nullptr) {
    const bool is_packed = options_.compression.returns != ReturnFormat::fp32;  // then it was unpacked in host memory
    if (is_packed || link.path->way() == GpuTransfer::staged) {
      gpu->upload_parameters(bucket.range);
    } else if (link.path->writes_by_nic()) {
      gpu->nic_wrote();
    }
  }
  Fragment& fragment = fragments_[bucket.fragment];
  fragment.waited_ns = std::max(fragment.waited_ns, header.waited_ns);
  fragment.dropped = fragment.dropped || header.dropped != 0;
  // One bucket represents all: their staleness differs by the few updates between two of them.
  const bool is_measured = bucket_index == 0 && link.shard_index == 0;
  if (header.dropped != 0 && repeats_late() && bucket.kind == ps::ArrivalKind::push) {
    bucket.is_late = true;
    ++fragment.late_count;
    if (is_measured) fragment.late_staleness += header.staleness;
  } else if (is_measured && bucket.kind == ps::ArrivalKind::push) {
    telemetry_.count_staleness(fragment.late_staleness + header.staleness);
  }
  // The version in the header is the age of the shard's parameters, also where our gradient was dropped.
  bucket.version = header.version;
  bucket.next_step = header.next_step;
  bucket.outstanding = false;
  GRADRAIL_CHECK(fragment.outstanding > 0);
  --fragment.outstanding;
  if (options_.hooks.on_arrived) options_.hooks.on_arrived(bucket.range.first, bucket.range.count, header.version);
  const uint64_t fp32_bytes = bucket.range.count * sizeof(float);
  link.bytes->returned_fp32 += fp32_bytes + sizeof(header);
  link.bytes->returned += (header.payload_bytes > 0 ? header.payload_bytes : fp32_bytes) + sizeof(header);
  start_next_at_place(shard, bucket_index);
  if (fragment.outstanding == 0 && fragment.late_count > 0) repeat_late(bucket.fragment);
}

/// Repeats the late buckets in the next step. This worker waits for that step and then has the pace of the others.
void Exchange::repeat_late(Index index) {
  Fragment& fragment = fragments_[index];
  fragment.step = std::max(fragment.step, lowest_version(index)) + 1;
  fragment.late_count = 0;
  fragment.outstanding = fragment.bucket_count;
  for_each_bucket(index, [&](Shard&, uint32_t, Bucket& bucket) {
    bucket.begin_step(bucket.is_late ? ps::ArrivalKind::push : ps::ArrivalKind::absent);
  });
  for_each_bucket(index, [&](Shard& shard, uint32_t i, Bucket&) { push_bucket(shard, i); });
}

/// The shard has stored fp32 parameters already.
absl::Status Exchange::store_answer(const ShardLink& link, const ps::ReturnHeader& header, uint32_t bucket_index) {
  Bucket& bucket = shards_[link.shard_index].buckets[bucket_index];
  if (options_.compression.returns == ReturnFormat::fp32) {
    const bool matches = header.has_crc == 0 || memory_.parameter_crc32c(bucket.range) == header.crc32c;
    return matches ? absl::OkStatus() : absl::DataLossError("do not match their CRC32C");
  }
  const std::byte* const packed = link.path->packed_parameters(bucket_index, bucket.range);
  GRADRAIL_RETURN_IF_ERROR(memory_.unpack(header, bucket.answer, packed, bucket.range));
  bucket.answer = header.answer;
  return absl::OkStatus();
}

void Exchange::on_path_lost(ShardLink& link) {
  GRADRAIL_CHECK(link.is_up() && link.shard_index < shards_.size());
  Shard& shard = shards_[link.shard_index];
  const auto is_its = [&](const Pending& pending) { return pending.shard == &shard; };
  // A push that waits for the lost path is pushed again below, with a header in the new path's memory.
  std::erase_if(backlog_, is_its);
  std::erase_if(prepared_, is_its);
  // The shard numbers the answers of each path from 1.
  for (Bucket& bucket : shard.buckets) bucket.answer = 0;
  // A backup that takes over may lack initial values that its primary has answered. They are offered again, and the
  // first ones count.
  for (Bucket& bucket : shard.buckets) {
    if (!is_under_way(bucket.fragment) || bucket.kind != ps::ArrivalKind::initialise) continue;
    if (!bucket.pushed || bucket.outstanding) continue;
    bucket.outstanding = true;
    ++fragments_[bucket.fragment].outstanding;
  }
  // A bucket that was applied already is answered again and counts once: the shard compares (incarnation, step,
  // bucket).
  for (auto i = static_cast<uint32_t>(shard.buckets.size()); i-- > 0;) {
    Bucket& bucket = shard.buckets[i];
    if (!is_under_way(bucket.fragment) || !bucket.pushed || !bucket.outstanding) continue;
    bucket.pushed = false;
    push_bucket(shard, i);
  }
}

void Exchange::offer_instead_of_pull() {
  backlog_.clear();
  for (Index index = 0; index < fragment_count(); ++index) {
    // The pull of a fragment that has ended has the values of the former chief in all buckets.
    if (!is_under_way(index)) continue;
    GRADRAIL_CHECK(kind(index) == ps::ArrivalKind::pull);
    fragments_[index].kind = ps::ArrivalKind::initialise;
    for_each_bucket(index, [&](Shard& shard, uint32_t i, Bucket& bucket) {
      bucket.kind = ps::ArrivalKind::initialise;
      bucket.has_pull = bucket.pushed;
      bucket.pushed = false;
      // Buckets with an answer hold the values of the former chief: these are initialized.
      if (bucket.outstanding) push_bucket(shard, i);
    });
  }
}

absl::Status Exchange::finish(Index index) {
  Fragment& fragment = fragments_[index];
  GRADRAIL_CHECK(fragment.under_way);
  fragment.under_way = false;
  if (!is_under_way()) telemetry_.end_exchange();
  // All answers are here. A ps that is lost after its last answer concerns the next call, which has the remedies.
  if (const absl::Status failed = failure_.status(); !failed.ok() && !may_be_remedied(failed)) return failed;
  GRADRAIL_CHECK(fragment.outstanding == 0);
  if (memory_.gpu() != nullptr) {
    // Kernels of the next step must read all parameters, whichever way transferred them.
    if (absl::Status finished = memory_.gpu()->finish_transfers(); !finished.ok()) {
      failure_.fail(finished);
      return finished;
    }
  }
  const TimePoint now = Clock::now();
  telemetry_.mark(Mark::Kind::done, fragment.step, now);
  if (kind(index) != ps::ArrivalKind::push) {
    if (!fragment.has_pushed) raise_first_step(index);
    return absl::OkStatus();
  }
  fragment.done_step = fragment.step;
  ended_at_ = now;
  telemetry_.count_exchange(ended_at_ - fragment.begun_at, fragment.waited_ns);
  if (fragment.dropped) catch_up(index);
  return absl::OkStatus();
}

/// Raises the first step to that of the other workers. They have continued since the join: they wait for this worker
/// from the arrival of its first request on.
void Exchange::raise_first_step(Index index) {
  uint64_t first = options_.mode.kind == ModeKind::async ? 0 : lowest_version(index) + 1;
  if (options_.mode.kind == ModeKind::ssp) {
    first = UINT64_MAX;
    for_each_bucket(index, [&](Shard&, uint32_t, Bucket& bucket) { first = std::min(first, bucket.next_step); });
  }
  Fragment& fragment = fragments_[index];
  if (first != UINT64_MAX && first > 0) fragment.step = std::max(fragment.step, first - 1);
}

/// Moves this worker to the step of the others after a part of its gradient was late: they are further on
/// (ps/shard/shard_protocol.h, "Joining").
void Exchange::catch_up(Index index) {
  telemetry_.count_dropped();
  // The next step is the smallest that is missing in some bucket. An earlier one would be dropped again.
  fragments_[index].step = std::max(fragments_[index].step, lowest_version(index));
}

uint64_t Exchange::lowest_version(Index fragment) const {
  uint64_t lowest = UINT64_MAX;
  for (const Shard& shard : shards_) {
    for (const Bucket& bucket : shard.buckets) {
      if (bucket.fragment == fragment) lowest = std::min(lowest, bucket.version);
    }
  }
  return lowest;
}

void Exchange::set_first_steps(const std::vector<uint64_t>& first_steps) {
  GRADRAIL_CHECK(first_steps.size() == fragments_.size());
  for (size_t i = 0; i < fragments_.size(); ++i) {
    fragments_[i].step = first_steps[i] - 1;
    fragments_[i].has_pushed = false;
    fragments_[i].done_step = 0;
  }
}

void Exchange::lower_first_steps(const std::vector<uint64_t>& first_steps) {
  GRADRAIL_CHECK(first_steps.size() == fragments_.size());
  for (size_t i = 0; i < fragments_.size(); ++i) {
    if (!fragments_[i].has_pushed) fragments_[i].step = std::min(fragments_[i].step, first_steps[i] - 1);
  }
}

bool Exchange::is_unanswered_push() const {
  if (!is_under_way(0) || kind(0) != ps::ArrivalKind::push) return false;
  return std::all_of(shards_.begin(), shards_.end(), [](const Shard& shard) {
    return std::all_of(shard.buckets.begin(), shard.buckets.end(),
                       [](const Bucket& b) { return b.fragment != 0 || b.outstanding; });
  });
}

uint64_t Exchange::global_step(Index fragment) const {
  for (const Shard& shard : shards_) {
    // A model with few elements leaves the last shards without buckets.
    for (const Bucket& bucket : shard.buckets) {
      if (bucket.fragment == fragment) return bucket.version;
    }
  }
  return 0;
}

std::vector<uint64_t> Exchange::versions(uint32_t shard_index) const {
  GRADRAIL_CHECK(shard_index < shards_.size());
  std::vector<uint64_t> versions;
  for (const Bucket& bucket : shards_[shard_index].buckets) versions.push_back(bucket.version);
  return versions;
}

std::vector<uint64_t> Exchange::answered_steps(uint32_t shard_index) const {
  GRADRAIL_CHECK(shard_index < shards_.size());
  std::vector<uint64_t> steps;
  for (const Bucket& bucket : shards_[shard_index].buckets) {
    const Fragment& fragment = fragments_[bucket.fragment];
    const bool is_ahead =
        fragment.under_way && fragment.kind == ps::ArrivalKind::push && bucket.pushed && !bucket.outstanding;
    steps.push_back(is_ahead ? fragment.step : fragment.done_step);
  }
  return steps;
}

}  // namespace gradrail::worker
