#include "worker/publish/subscriber.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "base/random_bits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gradrail/cluster.h"
#include "ps/protocol/security.h"
#include "worker/publish/delta.h"

namespace gradrail::publish {
namespace {

constexpr Duration kFirstPause = std::chrono::milliseconds(50);
constexpr Duration kLongestPause = std::chrono::seconds(2);

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// Many readers of one publisher must not connect in the same moment.
Duration with_jitter(Duration pause) {
  const double share = static_cast<double>(random_bits() >> 11) * 0x1p-53;
  return std::chrono::duration_cast<Duration>(pause * (0.5 + share / 2));
}

std::unique_ptr<std::byte[]> take_memory(size_t bytes) {
  return std::unique_ptr<std::byte[]>(new (std::nothrow) std::byte[bytes]);
}

absl::Status no_memory(size_t bytes) {
  return absl::ResourceExhaustedError(fmt::format("no memory for {} bytes of parameters", bytes));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Subscriber>> Subscriber::open(SubscriberOptions options) {
  GRADRAIL_ASSIGN_OR_RETURN(const HostPort place, parse_host_port(options.address));
  if (place.port == 0) {
    return absl::InvalidArgumentError(
        fmt::format("address '{}': port 0: give the port of the publisher, such as 10.0.0.1:7000", options.address));
  }
  const Security security{.secret = options.secret, .insecure = options.insecure};
  if (!ps::check_exposure(security, options.address).ok()) {
    return absl::FailedPreconditionError(fmt::format(
        "publisher {} is on another host: set secret_file, or insecure in a trusted network", options.address));
  }
  return std::unique_ptr<Subscriber>(new Subscriber(std::move(options)));
}

void Subscriber::drop_link() {
  link_.reset();
  greeted_ = false;
  header_.reset();
  body_read_ = 0;
  incoming_.reset();
}

template <typename Attempt>
absl::Status Subscriber::retry(TimePoint deadline, Attempt attempt) {
  while (true) {
    absl::Status status = ensure_connected(deadline);
    if (status.ok()) status = attempt();
    if (status.ok()) return status;
    if (absl::IsDeadlineExceeded(status)) {
      const std::string cause = last_loss_.empty() || greeted_ ? std::string(message_of(status)) : last_loss_;
      return absl::DeadlineExceededError(fmt::format("waiting for the publisher at {}: {}", options_.address, cause));
    }
    drop_link();
    if (!absl::IsUnavailable(status)) return status;
    if (last_loss_ != message_of(status)) log_info("subscriber: {}; connecting again", message_of(status));
    last_loss_ = std::string(message_of(status));
    pause_ = std::clamp(pause_ * 2, kFirstPause, kLongestPause);
    retry_at_ = Clock::now() + with_jitter(pause_);
  }
}

absl::Status Subscriber::ensure_connected(TimePoint deadline) {
  if (greeted_) return absl::OkStatus();
  if (link_ == nullptr) {
    std::this_thread::sleep_until(std::min(retry_at_, deadline));
    if (Clock::now() < retry_at_) return absl::DeadlineExceededError("it is not connected");
    const auto silence = from_seconds(options_.silence_timeout_s);
    GRADRAIL_ASSIGN_OR_RETURN(link_, PublisherLink::open(options_.address, options_.secret, silence));
  }
  GRADRAIL_RETURN_IF_ERROR(link_->greet(deadline));
  GRADRAIL_RETURN_IF_ERROR(accept_model(link_->welcome()));
  greeted_ = true;
  pause_ = Duration::zero();
  last_loss_.clear();
  ++stats_.connections;
  return absl::OkStatus();
}

absl::Status Subscriber::accept_model(const Welcome& welcome) {
  run_ = welcome.run;
  if (model_ && model_->text() == welcome.model) return absl::OkStatus();
  GRADRAIL_ASSIGN_OR_RETURN(Model model, Model::decode(welcome.model));
  if (model_) {
    const std::string difference =
        ps::difference(model_->schema(), model.schema(), {.ours = "before", .theirs = "now"});
    return absl::FailedPreconditionError(fmt::format(
        "the publisher at {} was restarted with other tensors or another format ({}): open another subscriber",
        options_.address, difference.empty() ? name_of(model.format()) : difference));
  }
  bits_ = take_memory(model.bytes());
  if (bits_ == nullptr) return no_memory(model.bytes());
  model_ = std::move(model);
  return absl::OkStatus();
}

absl::Status Subscriber::connect(TimePoint deadline) {
  return retry(deadline, [] { return absl::OkStatus(); });
}

void Subscriber::resume(uint64_t version, absl::Span<const float* const> arrays) {
  if (link_ != nullptr && (link_->has_request() || header_))
    drop_link();  // its pending request is for the successor of another version
  model_->to_bits(arrays, bits_.get());
  chunks_ = chunk_digests(*model_, bits_.get());
  have_ = Have{.version = version, .digest = digest_of(*model_, chunks_)};
}

absl::Status Subscriber::next(TimePoint deadline) {
  return retry(deadline, [&] { return receive(deadline); });
}

absl::Status Subscriber::receive(TimePoint deadline) {
  while (true) {
    if (!header_) {
      if (!link_->has_request()) GRADRAIL_RETURN_IF_ERROR(link_->request({.follow = options_.follow, .have = have_}));
      GRADRAIL_ASSIGN_OR_RETURN(const VersionHeader header, link_->read_version(deadline));
      GRADRAIL_RETURN_IF_ERROR(begin_body(header));
      header_ = header;
    }
    GRADRAIL_RETURN_IF_ERROR(read_body(deadline));
    const absl::Status status = finish_body();
    header_.reset();
    incoming_.reset();
    if (status.ok()) {
      failed_hash_ = false;
      return status;
    }
    ++stats_.hash_failures;
    if (std::exchange(failed_hash_, !failed_hash_)) return status;
    log_warning("subscriber: {}; requesting all parameters", message_of(status));
  }
}

absl::Status Subscriber::begin_body(const VersionHeader& header) {
  const size_t longest = model_->bytes() + model_->chunk_count() * kChunkHeaderBytes;
  const bool fits = header.is_delta ? have_ && header.body_bytes <= longest : header.body_bytes == model_->bytes();
  if (!fits)
    return absl::DataLossError(
        fmt::format("the publisher at {} sent a version of {} bytes", options_.address, header.body_bytes));
  body_read_ = 0;
  incoming_chunks_.assign(model_->chunk_count(), {});
  if (!header.is_delta && !have_) return absl::OkStatus();
  incoming_ = take_memory(header.body_bytes);
  return incoming_ != nullptr ? absl::OkStatus() : no_memory(header.body_bytes);
}

absl::Status Subscriber::read_body(TimePoint deadline) {
  std::byte* const target = incoming_ != nullptr ? incoming_.get() : bits_.get();
  while (body_read_ < header_->body_bytes) {
    // Chunk by chunk: its bytes are still in the cache when they are hashed.
    const size_t chunk = body_read_ / kChunkBytes;
    const size_t end = std::min<size_t>((chunk + 1) * kChunkBytes, header_->body_bytes);
    GRADRAIL_ASSIGN_OR_RETURN(const size_t got, link_->read_some(target + body_read_, end - body_read_, deadline));
    body_read_ += got;
    if (body_read_ == end && !header_->is_delta) {
      const Chunk place = model_->chunk(chunk);
      incoming_chunks_[chunk] = sha256({target + place.offset, place.bytes});
    }
  }
  return absl::OkStatus();
}

absl::Status Subscriber::finish_body() {
  const TimePoint start = Clock::now();
  const VersionHeader& header = *header_;
  const absl::Status wrong =
      absl::DataLossError(fmt::format("version {} of the publisher at {} has a wrong hash: it was damaged on its way",
                                      header.version, options_.address));
  if (header.is_delta) {
    // The bits belong to no version from here until the comparison.
    have_.reset();
    if (!apply_deltas().ok() || digest_of(*model_, chunks_) != header.digest) return wrong;
  } else {
    if (digest_of(*model_, incoming_chunks_) != header.digest) return wrong;
    if (incoming_ != nullptr) std::memcpy(bits_.get(), incoming_.get(), model_->bytes());
    chunks_ = std::move(incoming_chunks_);
  }
  have_ = Have{.version = header.version, .digest = header.digest};
  (header.is_delta ? stats_.delta_count : stats_.full_count) += 1;
  (header.is_delta ? stats_.delta_bytes : stats_.full_bytes) += header.body_bytes;
  stats_.last_verify_s = seconds_since(start);
  stats_.last_lag_s = unix_seconds() - static_cast<double>(header.published_unix_ns) * 1e-9;
  return absl::OkStatus();
}

absl::Status Subscriber::apply_deltas() {
  absl::Span<const std::byte> rest(incoming_.get(), header_->body_bytes);
  std::vector<bool> touched(model_->chunk_count());
  const auto bits_of = [this](size_t i) {
    const Chunk chunk = model_->chunk(i);
    return absl::Span<std::byte>(bits_.get() + chunk.offset, chunk.bytes);
  };
  while (!rest.empty()) {
    for (size_t i = 0; i < touched.size(); ++i) {
      bool changed = false;
      GRADRAIL_RETURN_IF_ERROR(apply_delta(model_->format(), rest, bits_of(i), changed));
      touched[i] = touched[i] || changed;
    }
  }
  for (size_t i = 0; i < touched.size(); ++i) {
    if (touched[i]) chunks_[i] = sha256(bits_of(i));
  }
  return absl::OkStatus();
}

}  // namespace gradrail::publish
