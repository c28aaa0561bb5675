#include "worker/publish/version_store.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/clock.h"
#include "fmt/format.h"
#include "worker/publish/delta.h"

namespace gradrail::publish {
namespace {

constexpr size_t kSpareBits = 2;  // one is written while the encoder reads the other

}  // namespace

struct VersionStore::Spare {
  Mutex mutex;
  std::vector<std::unique_ptr<std::byte[]>> list ABSL_GUARDED_BY(mutex);

  std::unique_ptr<std::byte[]> take() {
    const MutexLock lock(mutex);
    if (list.empty()) return nullptr;
    std::unique_ptr<std::byte[]> taken = std::move(list.back());
    list.pop_back();
    return taken;
  }
  void give(std::unique_ptr<std::byte[]> bits) {
    const MutexLock lock(mutex);
    if (list.size() < kSpareBits) list.push_back(std::move(bits));
  }
};

size_t Answer::bytes() const {
  size_t sum = 0;
  for (const Piece& piece : pieces) sum += piece.bytes;
  return sum;
}

VersionStore::VersionStore(Model model, uint32_t keep)
    : model_(std::move(model)), keep_(keep), spare_(std::make_shared<Spare>()) {}

absl::StatusOr<std::shared_ptr<std::byte[]>> VersionStore::new_bits() {
  std::unique_ptr<std::byte[]> bits = spare_->take();
  if (bits == nullptr) bits.reset(new (std::nothrow) std::byte[model_.bytes()]);
  if (bits == nullptr) {
    return absl::ResourceExhaustedError(
        fmt::format("no memory for a version of {} bytes: publish bf16, or keep fewer versions", model_.bytes()));
  }
  return std::shared_ptr<std::byte[]>(
      bits.release(), [spare = spare_](std::byte* data) { spare->give(std::unique_ptr<std::byte[]>(data)); });
}

void VersionStore::prepare() {
  for (size_t i = 0; i < kSpareBits; ++i) {
    std::unique_ptr<std::byte[]> bits(new (std::nothrow) std::byte[model_.bytes()]);
    if (bits == nullptr) return;
    std::memset(bits.get(), 0, model_.bytes());  // the kernel gives a page at its first write
    spare_->give(std::move(bits));
  }
}

absl::Status VersionStore::check_number(uint64_t version) const {
  const MutexLock lock(mutex_);
  if (!last_number_ || version > *last_number_) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("version {}: must be more than {}, the last published version", version, *last_number_));
}

void VersionStore::add(uint64_t version, uint64_t published_unix_ns, Bits bits) {
  const MutexLock lock(mutex_);
  last_number_ = version;
  ++published_;
  if (pending_.size() >= keep_) {
    pending_.pop_front();
    ++superseded_;
  }
  pending_.push_back({.number = version, .published_unix_ns = published_unix_ns, .bits = std::move(bits)});
  changed_.notify_all();
}

bool VersionStore::encode_next() {
  MutexLock lock(mutex_);
  while (pending_.empty() && !stopped_) changed_.wait(lock);
  if (stopped_) return false;
  Version next = std::move(pending_.front());
  pending_.pop_front();
  std::optional<Version> last;
  if (!kept_.empty()) last = kept_.back();
  encoding_ = true;
  lock.unlock();
  const TimePoint start = Clock::now();
  encode(last ? &*last : nullptr, next);
  const double seconds = seconds_since(start);
  last.reset();  // its bits may be the next spare ones
  lock.lock();
  encoding_ = false;
  last_encode_s_ = seconds;
  if (!kept_.empty()) kept_.back().bits.reset();
  kept_.push_back(std::move(next));
  if (kept_.size() > keep_) kept_.pop_front();
  changed_.notify_all();
  return true;
}

void VersionStore::encode(const Version* last, Version& next) {
  if (last == nullptr) {
    chunks_ = chunk_digests(model_, next.bits.get());
    next.digest = digest_of(model_, chunks_);
    return;
  }
  std::vector<std::byte> delta;
  for (size_t i = 0; i < chunks_.size(); ++i) {
    const Chunk chunk = model_.chunk(i);
    const absl::Span<const std::byte> now(next.bits.get() + chunk.offset, chunk.bytes);
    if (append_delta(model_.format(), {last->bits.get() + chunk.offset, chunk.bytes}, now, delta))
      chunks_[i] = sha256(now);
  }
  next.digest = digest_of(model_, chunks_);
  // The vector has grown by doubling, and a stored delta must not use twice its bytes.
  std::shared_ptr<std::byte[]> exact(new std::byte[delta.size()]);
  std::copy(delta.begin(), delta.end(), exact.get());
  next.delta = {.bits = std::move(exact), .bytes = delta.size()};
}

bool VersionStore::wait_encoded(TimePoint deadline) {
  MutexLock lock(mutex_);
  while (!pending_.empty() || encoding_) {
    if (stopped_ || !changed_.wait_until(lock, deadline)) return pending_.empty() && !encoding_;
  }
  return true;
}

void VersionStore::stop() {
  const MutexLock lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

std::optional<Answer> VersionStore::answer_for(const std::optional<Have>& have, Follow follow) const {
  const MutexLock lock(mutex_);
  if (kept_.empty()) return std::nullopt;
  const auto at = std::find_if(kept_.begin(), kept_.end(), [&](const Version& version) {
    return have && version.number == have->version && version.digest == have->digest;
  });
  if (at != kept_.end() && at + 1 == kept_.end()) return std::nullopt;
  if (at != kept_.end()) {
    const auto end = follow == Follow::each ? at + 2 : kept_.end();
    const Version& last = *(end - 1);
    Answer answer{
        .version = last.number, .digest = last.digest, .published_unix_ns = last.published_unix_ns, .is_delta = true};
    for (auto next = at + 1; next != end; ++next) answer.pieces.push_back(next->delta);
    if (follow == Follow::each || answer.bytes() < model_.bytes()) return answer;
  }
  const Version& newest = kept_.back();
  return Answer{.version = newest.number,
                .digest = newest.digest,
                .published_unix_ns = newest.published_unix_ns,
                .pieces = {{.bits = newest.bits, .bytes = model_.bytes()}}};
}

StoreStats VersionStore::stats() const {
  const MutexLock lock(mutex_);
  StoreStats stats{
      .published = published_, .superseded = superseded_, .kept = kept_.size(), .last_encode_s = last_encode_s_};
  for (const Version& version : kept_) stats.kept_delta_bytes += version.delta.bytes;
  if (!kept_.empty()) {
    stats.newest = Have{.version = kept_.back().number, .digest = kept_.back().digest};
    stats.last_delta_bytes = kept_.back().delta.bytes;
  }
  return stats;
}

}  // namespace gradrail::publish
