#include "worker/publish/reader_link.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/random_bits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/protocol/mac.h"

namespace gradrail::publish {
namespace {

// Bytes of one turn of a reader: long enough to fill a socket buffer, short enough for the next reader.
constexpr size_t kTurnBytes = size_t{1} << 20;
constexpr Duration kGreetingLimit = std::chrono::seconds(10);  // limit also of the last message of a connection

absl::Status lost(const std::string& peer, int error) {
  return absl::UnavailableError(
      fmt::format("reader {} left: {}", peer, error == 0 ? "it closed the connection" : std::strerror(error)));
}

bool is_temporary(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

ReaderLink::ReaderLink(FileDescriptor socket, std::string peer, const std::string& secret)
    : socket_(std::move(socket)), peer_(std::move(peer)), secret_(secret), nonce_(random_bytes(kNonceBytes)) {
  queue(std::string(kMagic) + nonce_);
}

void ReaderLink::queue(std::string text) {
  const auto owner = std::make_shared<const std::string>(std::move(text));
  // Aliasing: the piece keeps the text.
  output_.push_back({.bits = Bits(owner, reinterpret_cast<const std::byte*>(owner->data())), .bytes = owner->size()});
  progress_ = Clock::now();
}

short ReaderLink::events() const { return static_cast<short>(POLLIN | (has_output() ? POLLOUT : 0)); }

absl::Status ReaderLink::read(uint64_t run, const std::string& model) {
  char buffer[kHelloBytes];
  const size_t room = state_ == State::ended ? sizeof(buffer) : expected() - input_.size();
  const ssize_t got = recv(fd(), buffer, std::min(room, sizeof(buffer)), 0);
  if (got < 0 && is_temporary(errno)) return absl::OkStatus();
  if (got <= 0) {
    closed_ = true;
    return state_ == State::ended ? absl::OkStatus() : lost(peer_, got == 0 ? 0 : errno);
  }
  if (state_ == State::ended) return absl::OkStatus();
  progress_ = Clock::now();
  input_.append(buffer, static_cast<size_t>(got));
  if (input_.size() < expected()) return absl::OkStatus();
  const std::string message = std::exchange(input_, {});
  if (state_ == State::greeting) return on_hello(message, run, model);
  if (state_ == State::waiting || has_output())
    return absl::DataLossError(fmt::format("{} sent a request before the answer to its last one", peer_));
  GRADRAIL_ASSIGN_OR_RETURN(request_, decode_request(message));
  if (request_->have) sent_ = request_->have->digest;
  state_ = State::waiting;
  return absl::OkStatus();
}

absl::Status ReaderLink::on_hello(std::string_view hello, uint64_t run, const std::string& model) {
  if (!hello.starts_with(kMagic)) return absl::DataLossError(fmt::format("{} is not a reader of weights", peer_));
  key_ = session_key(secret_, nonce_, hello.substr(kMagic.size(), kNonceBytes));
  if (!ps::same_bytes(hello.substr(kMagic.size() + kNonceBytes), proof_of(key_, "reader"))) {
    end(absl::FailedPreconditionError(
        "the publisher refused the secret of this reader: give both the same secret file"));
    return absl::OkStatus();
  }
  state_ = State::idle;
  queue(frame_text(FrameType::welcome,
                   encode(Welcome{.proof = proof_of(key_, "publisher"), .run = run, .model = model})));
  return absl::OkStatus();
}

absl::Status ReaderLink::write() {
  size_t turn = kTurnBytes;
  while (has_output() && turn > 0) {
    const Piece& piece = output_.front();
    const size_t bytes = std::min(piece.bytes - written_, turn);
    const int more = output_.size() > 1 ? MSG_MORE : 0;
    const ssize_t sent = send(fd(), piece.bits.get() + written_, bytes, MSG_NOSIGNAL | more);
    if (sent < 0 && is_temporary(errno)) return absl::OkStatus();
    if (sent < 0) return lost(peer_, errno);
    progress_ = Clock::now();
    written_ += static_cast<size_t>(sent);
    turn -= static_cast<size_t>(sent);
    if (written_ == piece.bytes) {
      output_.pop_front();
      written_ = 0;
    }
  }
  // Half a close: the reader still receives what is on its way. A close now could discard it.
  if (is_ended() && !has_output()) shutdown(fd(), SHUT_WR);
  return absl::OkStatus();
}

void ReaderLink::answer(const VersionStore& store, ReaderTotals& totals) {
  if (state_ != State::waiting) return;
  std::optional<Answer> found = store.answer_for(request_->have, request_->follow);
  if (!found) return;
  const size_t bytes = found->bytes();
  const VersionHeader header{.version = found->version,
                             .published_unix_ns = found->published_unix_ns,
                             .digest = found->digest,
                             .is_delta = found->is_delta,
                             .body_bytes = bytes};
  queue(frame_text(FrameType::version, encode(header, key_, answers_++)));
  for (Piece& piece : found->pieces) output_.push_back(std::move(piece));
  (found->is_delta ? totals.delta_count : totals.full_count) += 1;
  (found->is_delta ? totals.delta_bytes : totals.full_bytes) += bytes;
  sent_ = found->digest;
  state_ = State::idle;
}

absl::Status ReaderLink::check_time(Duration stall_limit, Duration idle_interval) {
  const Duration silent = Clock::now() - progress_;
  if (state_ == State::greeting && silent > kGreetingLimit)
    return absl::DeadlineExceededError(fmt::format("{} sent no greeting of a reader", peer_));
  if (is_ended() && silent > kGreetingLimit)
    return absl::UnavailableError(fmt::format("{} did not close its end", peer_));
  if (has_output() && silent > stall_limit) {
    return absl::DeadlineExceededError(
        fmt::format("reader {} received nothing for {} s: it is suspended, or the network is cut", peer_,
                    std::chrono::duration_cast<std::chrono::seconds>(silent).count()));
  }
  if (state_ == State::waiting && !has_output() && silent > idle_interval) queue(frame_text(FrameType::idle, {}));
  return absl::OkStatus();
}

bool ReaderLink::is_delivered() const {
  int unacknowledged = 0;
  return is_ended() && !has_output() && ioctl(fd(), SIOCOUTQ, &unacknowledged) == 0 && unacknowledged == 0;
}

void ReaderLink::end(const absl::Status& reason) {
  if (is_ended()) return;
  queue(frame_text(FrameType::end, encode_end(reason)));
  state_ = State::ended;
}

}  // namespace gradrail::publish
