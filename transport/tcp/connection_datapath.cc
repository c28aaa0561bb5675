// The hot path: posts, sending, receiving. Set-up and end are in connection.cc.
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "transport/common/byte_codec.h"
#include "transport/common/slice.h"
#include "transport/prepared_puts.h"
#include "transport/tcp/connection.h"
#include "transport/tcp/native_error.h"

namespace gradrail::transport::tcp {
namespace {

/// Limit for one connection in each direction and poll: 50 to 100 us of copying, the longest wait of other connections.
constexpr uint64_t kTurnBytes = 512 * 1024;
/// Two step's worth of 1 MiB buckets for a 500 MB shard; an operation is 150 B here.
constexpr size_t kMaxPosted = 1024;
constexpr size_t kMaxGets = 1024;

class TcpPreparedPuts final : public PreparedPuts {
 public:
  explicit TcpPreparedPuts(TcpConnection& connection) : connection_(connection) {}

  absl::Status post(size_t& posted) override {
    assert(posted == 0);  // the group is posted as a whole, or not at all
    absl::Status status = connection_.post(frames);
    if (status.ok()) posted = frames.puts.size();
    return status;
  }

  TcpConnection::PreparedFrames frames;

 private:
  TcpConnection& connection_;
};

}  // namespace

// Posts.

absl::Status TcpConnection::check_post(size_t operations) const {
  if (state_ == State::lost) return absl::UnavailableError(fmt::format("{}: the peer is lost", name_));
  if (queue_.posted_count() + operations > kMaxPosted)
    return absl::ResourceExhaustedError("tcp: send queue full, poll first");
  return absl::OkStatus();
}

absl::StatusOr<const RegionKey*> TcpConnection::remote(RemoteSlice slice, uint64_t bytes) const {
  // A put of 0 bytes to no region only notifies; its frame carries kNoRegion instead of a key.
  static constexpr RegionKey kNowhere = {.region = kNoRegion};
  if (slice.region == RemoteRegion{} && bytes == 0 && slice.offset == 0) return &kNowhere;
  const RegionKey* const key = imported_.find(slice.region);
  if (key == nullptr) return absl::InvalidArgumentError("tcp: not an imported region");
  GRADRAIL_RETURN_IF_ERROR(common::check_remote("tcp", slice, bytes, key->bytes));
  return key;
}

absl::StatusOr<SendOp> TcpConnection::put_of(const LocalSlice& source, const RemoteSlice& target,
                                             const PutOptions& options) const {
  GRADRAIL_RETURN_IF_ERROR(common::check_local("tcp", source));
  GRADRAIL_ASSIGN_OR_RETURN(const RegionKey* const key, remote(target, source.bytes));
  return SendOp{.header = {.type = FrameType::put,
                           .notify = options.immediate.has_value(),
                           .region = key->region,
                           .epoch = key->epoch,
                           .token = key->token,
                           .offset = target.offset,
                           .length = source.bytes,
                           .value = options.immediate.value_or(0)},
                .source = common::address_of(source),
                .tag = options.tag};
}

absl::Status TcpConnection::put(LocalSlice source, RemoteSlice target, PutOptions options) {
  GRADRAIL_RETURN_IF_ERROR(check_post());
  GRADRAIL_ASSIGN_OR_RETURN(SendOp op, put_of(source, target, options));
  // A put without an immediate waits in the queue and shares a sendmsg with the next one (connection.h permits it).
  post(std::move(op), options.immediate.has_value());
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<PreparedPuts>> TcpConnection::prepare(absl::Span<const Transfer> puts,
                                                                     uint64_t immediate) {
  auto prepared = std::make_unique<TcpPreparedPuts>(*this);
  PreparedFrames& frames = prepared->frames;
  for (const Transfer& put : puts) {
    PutOptions options;
    if (&put == &puts.back()) options.immediate = immediate;
    GRADRAIL_ASSIGN_OR_RETURN(SendOp op, put_of(put.source, put.target, options));
    frames.bytes += kHeaderBytes + op.header.length;
    frames.headers.push_back(encode(op.header));
    frames.puts.push_back(std::move(op));
  }
  const auto fits = [](const SendOp& op) { return op.header.length <= kMaxFramePayloadBytes; };
  if (frames.bytes > kTurnBytes || !std::all_of(frames.puts.begin(), frames.puts.end(), fits)) return prepared;
  for (size_t i = 0; i < frames.puts.size(); ++i) {
    const SendOp& op = frames.puts[i];
    frames.pieces.push_back({frames.headers[i].data(), kHeaderBytes});
    if (op.header.length > 0) frames.pieces.push_back({const_cast<std::byte*>(op.source), op.header.length});
  }
  return prepared;
}

absl::Status TcpConnection::post(const PreparedFrames& frames) {
  GRADRAIL_RETURN_IF_ERROR(check_post(frames.puts.size()));
  const bool is_free = seal_ == nullptr && queue_.empty() && !blocked_ && send_error_.ok();
  ssize_t taken = 0;
  if (is_free && !frames.pieces.empty()) {
    taken = send_pieces(fd_.get(), frames.pieces, frames.bytes);
    if (taken == static_cast<ssize_t>(frames.bytes)) return absl::OkStatus();
    if (taken < 0 && errno != EAGAIN && errno != EINTR) fail_to_send(errno);
  }
  for (const SendOp& op : frames.puts) queue_.push(op);
  if (taken > 0) {
    // The queue makes the same frames, and their rest follows what is on the wire.
    queue_.gather(frames.bytes);
    sent(static_cast<uint64_t>(taken));
    set_blocked(true);
  }
  flush();
  if (sendable()) context_.flush_later(this);
  return absl::OkStatus();
}

absl::Status TcpConnection::get(LocalSlice target, RemoteSlice source, uint64_t tag) {
  GRADRAIL_RETURN_IF_ERROR(check_post());
  if (gets_.size() >= kMaxGets) return absl::ResourceExhaustedError("tcp: too many gets outstanding, poll first");
  GRADRAIL_RETURN_IF_ERROR(common::check_local("tcp", target));
  GRADRAIL_ASSIGN_OR_RETURN(const RegionKey* const key, remote(source, target.bytes));
  // remote() accepts the empty slice for the sake of puts; a get always reads a region.
  if (key->region == kNoRegion) return absl::InvalidArgumentError("tcp: get from no region");
  GRADRAIL_CHECK(gets_.empty() || gets_.back().number + 1 == next_get_);  // the peer answers in this order
  gets_.push_back({.number = next_get_, .target = common::address_of(target), .bytes = target.bytes, .tag = tag});
  post({.header = {.type = FrameType::get_request,
                   .region = key->region,
                   .epoch = key->epoch,
                   .token = key->token,
                   .offset = source.offset,
                   .length = target.bytes,
                   .value = next_get_++}},
       true);
  return absl::OkStatus();
}

absl::Status TcpConnection::send(absl::Span<const std::byte> message) {
  if (message.size() > kMaxMessageBytes) {
    return absl::InvalidArgumentError(
        fmt::format("tcp: message of {} bytes, more than {}", message.size(), kMaxMessageBytes));
  }
  GRADRAIL_RETURN_IF_ERROR(check_post());
  post({.header = {.type = FrameType::message, .length = message.size()},
        .body = std::string(reinterpret_cast<const char*>(message.data()), message.size())},
       true);
  return absl::OkStatus();
}

void TcpConnection::post(SendOp op, bool ring) {
  GRADRAIL_CHECK(state_ == State::open);  // lose() has cleared the queue of a lost connection
  queue_.push(std::move(op));
  if (ring) flush();
  // flush() ends at its budget. A blocked socket is not listed: EPOLLOUT calls writable() for it.
  if (sendable()) context_.flush_later(this);
}

// Sending.

void TcpConnection::flush() {
  for (uint64_t budget_bytes = kTurnBytes; budget_bytes > 0 && sendable();) {
    if (!send_once(budget_bytes)) break;
  }
}

void TcpConnection::writable() {
  set_blocked(false);
  flush();
  if (sendable()) context_.flush_later(this);
}

bool TcpConnection::send_once(uint64_t& budget_bytes) {
  // This side may unregister a region while the peer still waits for its bytes. gather() returns pointers into it, so
  // the check precedes each sendmsg.
  if (!answers_alive()) {
    refuse(absl::PermissionDeniedError("get from a region that is no longer registered"));
    return false;
  }
  if (seal_ != nullptr) return send_sealed(budget_bytes);
  const absl::Span<const iovec> pieces = queue_.gather(budget_bytes);
  GRADRAIL_CHECK(!pieces.empty());  // sendable() was true
  uint64_t offered = 0;
  for (const iovec& piece : pieces) offered += piece.iov_len;
  const ssize_t result = send_pieces(fd_.get(), pieces, offered);
  if (result < 0 && errno == EINTR) return true;
  if (result < 0 && errno != EAGAIN) {
    fail_to_send(errno);
    return false;
  }
  const uint64_t taken = result < 0 ? 0 : static_cast<uint64_t>(result);
  sent(taken);
  budget_bytes -= std::min(budget_bytes, taken);
  // A short write shows that the socket's buffer is full. EPOLLOUT is requested only then, because every epoll_wait()
  // would report a writable socket.
  set_blocked(taken < offered);
  return taken == offered;
}

/// The connection is not lost yet: a refusal or other last frames of the peer may still be readable. read_failed()
/// ends it.
void TcpConnection::fail_to_send(int error) {
  send_error_ = native_error(fmt::format("send to {}", peer_address(fd_.get()).text()), error);
}

bool TcpConnection::send_sealed(uint64_t& budget_bytes) {
  // A record that is partly sent is completed first, so that the buffer for records is empty here.
  if (!seal_->has_unsent()) {
    const uint64_t sealed = seal_->seal(queue_.gather(std::min<uint64_t>(budget_bytes, seal::kSealBytesPerCall)));
    sent(sealed);
    budget_bytes -= std::min(budget_bytes, sealed);
  }
  const ssize_t result = seal_->flush(fd_.get());
  if (result < 0 && errno == EINTR) return true;
  if (result < 0 && errno != EAGAIN) {
    fail_to_send(errno);
    return false;
  }
  set_blocked(seal_->has_unsent());
  return !seal_->has_unsent();
}

void TcpConnection::sent(uint64_t bytes) {
  // These bytes are copied, so put_done is due: the source may change. It does not state that they arrived.
  queue_.consume(bytes, [this](const SendOp& op) {
    if (op.tag == 0 || op.header.type != FrameType::put) return;
    Completion done;
    done.kind = Completion::Kind::put_done;
    done.connection = this;
    done.tag = op.tag;
    context_.report(std::move(done));
  });
}

bool TcpConnection::answers_alive() {
  return std::all_of(queue_.answers().begin(), queue_.answers().end(),
                     [this](const SendOp& op) { return context_.regions().alive(op.header.region, op.header.epoch); });
}

void TcpConnection::set_blocked(bool blocked) {
  if (blocked == blocked_) return;
  blocked_ = blocked;
  context_.count_blocked(blocked ? 1 : -1);
  if (fd_) context_.watch(fd_.get(), this, blocked);
}

// Receiving.

void TcpConnection::read() {
  const bool waits_to_agree = state_ == State::pending && seal_ != nullptr && !seal_->agreed() && !context_.may_agree();
  if (waits_to_agree) return context_.read_later(this);
  uint64_t budget_bytes = kTurnBytes;
  bool dry = false;
  // All buffered headers are read before the next readv, which needs the target of the current payload.
  while (consume_ahead() && !dry) {
    // The socket may hold more: arm() answers false, and the next poll continues.
    if (budget_bytes == 0) {
      context_.stopped_before_dry();
      // No event announces records that have left the socket.
      if (seal_ != nullptr && seal_->has_received()) context_.read_later(this);
      return;
    }
    const ReadResult result = read_once(budget_bytes);
    if (result == ReadResult::stop) return;
    dry = result == ReadResult::dry;
  }
}

TcpConnection::ReadResult TcpConnection::read_once(uint64_t& budget_bytes) {
  // A payload can span several polls, and the owner may unregister the region between them (invariant 1).
  if (in_payload_ && !target_alive()) {
    refuse(absl::PermissionDeniedError("put to a region that is no longer registered"));
    return ReadResult::stop;
  }
  // consume_ahead() stops there. A payload without missing bytes would make the readv below wait for nothing.
  GRADRAIL_CHECK(ahead_begin_ <= ahead_end_ && ahead_end_ - ahead_begin_ < kHeaderBytes);
  GRADRAIL_CHECK(!in_payload_ || target_bytes_ > 0);
  std::copy(&ahead_[ahead_begin_], &ahead_[ahead_end_], ahead_.get());  // less than a header is left
  ahead_end_ -= std::exchange(ahead_begin_, 0);
  if (seal_ != nullptr && seal_->agreed()) return read_sealed(budget_bytes);
  // One call takes the rest of a payload to its place, and the next headers with small payloads.
  const iovec ahead = {&ahead_[ahead_end_], ahead_limit_ - ahead_end_};
  const uint64_t wanted = (in_payload_ ? target_bytes_ : 0) + ahead.iov_len;
  ssize_t result = 0;
  if (in_payload_) {
    const iovec pieces[] = {{target_, target_bytes_}, ahead};
    result = readv(fd_.get(), pieces, std::size(pieces));
  } else {
    result = recv(fd_.get(), ahead.iov_base, ahead.iov_len, 0);
  }
  if (result <= 0) return read_failed(result);
  const auto got = static_cast<uint64_t>(result);
  budget_bytes -= std::min(budget_bytes, got);
  const uint64_t payload = in_payload_ ? std::min(got, target_bytes_) : 0;
  ahead_end_ += got - payload;
  payload_received(payload);
  // A short read has emptied the socket. Another readv would only return EAGAIN; later bytes are a new event.
  return got == wanted ? ReadResult::again : ReadResult::dry;
}

TcpConnection::ReadResult TcpConnection::read_sealed(uint64_t& budget_bytes) {
  const bool was_verified = seal_->has_verified();
  const absl::StatusOr<absl::Span<const std::byte>> record = seal_->next();
  if (!record.ok()) {
    // Any process can open a connection and send bytes. Only a peer with the keys makes an altered record an attack.
    if (state_ == State::open && was_verified) {
      refuse(record.status(), true);
    } else {
      lose(ended(message_of(record.status())), state_ == State::open);
    }
    return ReadResult::stop;
  }
  if (record->empty()) {
    if (seal_->take_drained()) return ReadResult::dry;
    const ssize_t result = seal_->receive(fd_.get());
    return result > 0 ? ReadResult::again : read_failed(result);
  }
  if (!was_verified) {
    auto larger = std::make_unique_for_overwrite<std::byte[]>(kHeaderBytes + seal::kMaxRecordBytes);
    std::copy_n(ahead_.get(), ahead_end_, larger.get());
    ahead_ = std::move(larger);
  }
  budget_bytes -= std::min<uint64_t>(budget_bytes, record->size());
  const uint64_t payload = in_payload_ ? std::min<uint64_t>(record->size(), target_bytes_) : 0;
  std::memcpy(&ahead_[ahead_end_], record->data() + payload, record->size() - payload);
  ahead_end_ += record->size() - payload;
  if (payload > 0) std::memcpy(target_, record->data(), payload);
  payload_received(payload);
  return ReadResult::again;
}

void TcpConnection::payload_received(uint64_t bytes) {
  GRADRAIL_CHECK(bytes <= target_bytes_);  // invariant 1
  target_ += bytes;
  target_bytes_ -= bytes;
  if (in_payload_ && target_bytes_ == 0) finish_frame();
}

bool TcpConnection::consume_ahead() {
  while (state_ != State::lost) {
    const size_t left = ahead_end_ - ahead_begin_;
    const bool enough = in_payload_ ? left > 0 : left >= kHeaderBytes;
    if (!enough) return !not_a_peer();
    // Any frame may report a completion. Without room the bytes stay unread, and TCP's receive window stops the sender.
    if (!context_.has_room()) {
      context_.read_later(this);
      return false;
    }
    if (in_payload_) {
      const uint64_t bytes = std::min<uint64_t>(left, target_bytes_);
      std::memcpy(target_, &ahead_[ahead_begin_], bytes);
      ahead_begin_ += bytes;
      payload_received(bytes);
    } else {
      HeaderBytes header;
      std::memcpy(header.data(), &ahead_[ahead_begin_], kHeaderBytes);
      ahead_begin_ += kHeaderBytes;
      header_complete(header);
    }
  }
  return false;
}

bool TcpConnection::not_a_peer() {
  // The check does not wait for a whole header: other protocols' banners are shorter.
  if (handshake_done_ || starts_frame({&ahead_[ahead_begin_], ahead_end_ - ahead_begin_})) return false;
  lose(absl::DataLossError(fmt::format("{}: not a gradrail peer", name_)));
  return true;
}

TcpConnection::ReadResult TcpConnection::read_failed(ssize_t result) {
  if (result < 0 && errno == EINTR) return ReadResult::again;
  if (result < 0 && errno == EAGAIN) return ReadResult::dry;
  if (result < 0) {
    lose(ended(message_of(native_error("receive", errno))));
  } else if (!send_error_.ok()) {
    lose(ended(message_of(send_error_)));  // the socket reports its error once, and the send has received it
  } else {
    lose(ended("peer closed the connection"));
  }
  return ReadResult::stop;
}

void TcpConnection::header_complete(const HeaderBytes& header) {
  const absl::StatusOr<FrameHeader> frame = decode(header);
  absl::Status status = frame.status();
  if (status.ok()) status = begin_frame(*frame);
  if (status.ok()) return;
  // The other end uses another protocol if there was no hello, and cannot read a refusal. A peer of another version
  // can: the layout of both frames is the same in every version.
  if (!handshake_done_ && status.code() == absl::StatusCode::kDataLoss) {
    lose({status.code(), fmt::format("{}: not a gradrail peer: {}", name_, message_of(status))});
  } else {
    refuse(status);
  }
}

absl::Status TcpConnection::begin_frame(const FrameHeader& frame) {
  GRADRAIL_CHECK(!in_payload_ && target_bytes_ == 0);  // the frame before has ended
  frame_ = frame;
  const bool seals = seal_ != nullptr && !seal_->agreed();
  if (frame.type == FrameType::hello && seals) {
    return absl::FailedPreconditionError(
        "this side encrypts data (--encrypt-data) and the peer does not: give the flag to all tasks, or to none");
  }
  if (frame.type == FrameType::hello && !handshake_done_) return begin_hello(frame);
  // A refusal may be the first frame: adopt() sends it alone when too many connections are open.
  const bool may_come_first = frame.type == FrameType::refusal || (frame.type == FrameType::seal && (seals || !seal_));
  if (!handshake_done_ && !may_come_first) return absl::DataLossError("no hello");
  switch (frame.type) {
    case FrameType::hello:
      return absl::DataLossError("second hello");
    case FrameType::get_request:
      return answer_get(frame);
    case FrameType::seal:
      if (handshake_done_) return absl::DataLossError("seal frame behind the hello");
      if (seal_ == nullptr) {
        return absl::FailedPreconditionError(
            "the peer encrypts data (--encrypt-data) and this side does not: give the flag to all tasks, or to none");
      }
      if (frame.length != kSealBytes) return absl::DataLossError("seal frame without a key");
      body_ = context_.buffers().take();
      target_ = body_.get();
      break;
    case FrameType::put:
      GRADRAIL_RETURN_IF_ERROR(begin_put(frame));
      break;
    case FrameType::get_data:
      GRADRAIL_RETURN_IF_ERROR(begin_get_data(frame));
      break;
    case FrameType::message:
    case FrameType::refusal:
      // decode() has bounded the length by kMaxMessageBytes or kMaxRefusalBytes, and a buffer holds the larger of them.
      GRADRAIL_CHECK(frame.length <= kMaxMessageBytes);
      if (body_ == nullptr) body_ = context_.buffers().take();
      target_ = body_.get();
      break;
  }
  in_payload_ = true;
  target_bytes_ = frame.length;
  if (target_bytes_ == 0) finish_frame();
  return absl::OkStatus();
}

absl::Status TcpConnection::begin_put(const FrameHeader& frame) {
  if (frame.region == kNoRegion && frame.length == 0) return absl::OkStatus();
  // Frames repeat from step to step: the next payload of this size is received together with its header.
  if (frame.length > kFewAheadBytes) ahead_limit_ = frame.length <= kMostAheadPayload ? kAheadBytes : kFewAheadBytes;
  GRADRAIL_ASSIGN_OR_RETURN(std::byte* const place, find_target(context_.regions(), frame, Access::remote_write));
  target_ = place;
  return absl::OkStatus();
}

absl::Status TcpConnection::begin_get_data(const FrameHeader& frame) {
  if (gets_.empty()) return absl::DataLossError("answer to a get that was not requested");
  const PendingGet& get = gets_.front();
  // A frame without bytes makes no progress: only a get of 0 bytes may have one.
  const bool empty = frame.length == 0 && get.bytes > 0;
  if (frame.value != get.number || frame.offset != get.received_bytes || empty ||
      frame.length > get.bytes - get.received_bytes) {
    return absl::DataLossError(fmt::format("get answer out of order (offset {}, length {}, expected {} of {} bytes)",
                                           frame.offset, frame.length, get.received_bytes, get.bytes));
  }
  target_ = get.target + get.received_bytes;
  return absl::OkStatus();
}

absl::Status TcpConnection::answer_get(const FrameHeader& frame) {
  GRADRAIL_ASSIGN_OR_RETURN(std::byte* const place, find_target(context_.regions(), frame, Access::remote_read));
  // get() of the peer keeps the same limit. Without this check a hostile peer could grow the queue without bound.
  if (queue_.answer_count() >= kMaxGets)
    return absl::ResourceExhaustedError("get beyond the limit of outstanding gets");
  // Region and epoch stay in the header for answers_alive(); offset begins at 0: it counts within the answer.
  post({.header = {.type = FrameType::get_data,
                   .region = frame.region,
                   .epoch = frame.epoch,
                   .length = frame.length,
                   .value = frame.value},
        .source = place},
       true);
  return absl::OkStatus();
}

bool TcpConnection::target_alive() const {
  // Only the target of a put can end here. body_ belongs to this object, and the owner keeps the target of a get
  // (memory_region.h).
  return frame_.type != FrameType::put || context_.regions().alive(frame_.region, frame_.epoch);
}

void TcpConnection::finish_frame() {
  in_payload_ = false;
  switch (frame_.type) {
    case FrameType::message:
      return finish_message();
    case FrameType::get_data:
      return finish_get_data();
    case FrameType::refusal: {
      const std::string why = common::printable(common::as_text({body_.get(), frame_.length}));
      const bool altered = seal_ != nullptr && seal_->agreed() && frame_.value == kAlteredRecord;
      return lose(absl::PermissionDeniedError(fmt::format("{}: peer refused: {}", name_, why)), altered);
    }
    case FrameType::seal:
      return finish_seal();
    case FrameType::put:
      break;
    case FrameType::hello:
    case FrameType::get_request:
      GRADRAIL_CHECK(false && "frames without payload");
  }
  if (!frame_.notify) return;
  Completion arrived;
  arrived.kind = Completion::Kind::put_arrived;
  arrived.connection = this;
  arrived.immediate = frame_.value;
  context_.report(std::move(arrived));
}

void TcpConnection::finish_message() {
  GRADRAIL_CHECK(body_ != nullptr);
  Completion message;
  message.kind = Completion::Kind::message;
  message.connection = this;
  message.message = {body_.get(), frame_.length};
  context_.report(std::move(message), std::move(body_));
}

void TcpConnection::finish_get_data() {
  GRADRAIL_CHECK(!gets_.empty() && gets_.front().number == frame_.value);
  PendingGet& get = gets_.front();
  get.received_bytes += frame_.length;
  if (get.received_bytes < get.bytes) return;
  Completion done;
  done.kind = Completion::Kind::get_done;
  done.connection = this;
  done.tag = get.tag;
  gets_.pop_front();
  context_.report(std::move(done));
}

}  // namespace gradrail::transport::tcp
