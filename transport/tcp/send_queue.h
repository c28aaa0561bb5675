#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "absl/types/span.h"
#include "base/check.h"
#include "transport/tcp/frame.h"

namespace gradrail::transport::tcp {

/// Something to send: one frame, or for puts and get answers as many as its bytes need.
struct SendOp {
  FrameHeader header;  ///< header of the whole operation: `length` is all its bytes, `offset` their begin
  const std::byte* source = nullptr;
  uint64_t sent_bytes = 0;
  uint64_t tag = 0;
  std::string body;  ///< body of a message: owned, unlike a put's source
};

/// Frames that one connection still has to send, in three lanes. Control (hello, messages, get requests) precedes all
/// else at every frame boundary. Answers to gets and puts alternate. Independent of sockets.
///
/// Invariants  1. The first frame of the batch may be partly on the wire (begun_bytes_ > 0); then it stays the first.
///             2. An operation leaves its lane only when its last frame is fully consumed: payload pointers stay valid.
class SendQueue {
 public:
  void push(SendOp op);
  bool empty() const { return control_.empty() && answers_.empty() && puts_.empty(); }
  /// Operations posted by our side (answers are the peer's).
  size_t posted_count() const { return control_.size() + puts_.size(); }
  size_t answer_count() const { return answers_.size(); }
  const std::deque<SendOp>& answers() const { return answers_; }
  void clear();

  /// The next frames to send, at least one if not empty, about `budget_bytes` in all. Valid until the next call.
  absl::Span<const iovec> gather(uint64_t budget_bytes);

  /// The kernel took this many bytes of what gather() returned. Calls done(op) for each operation fully sent.
  template <typename Done>
  void consume(uint64_t bytes, Done&& done) {
    for (size_t i = 0; i < frame_count_ && bytes > 0; ++i) {
      Frame& frame = frames_[i];
      const uint64_t left = kHeaderBytes + frame.payload_bytes - (i == 0 ? begun_bytes_ : 0);
      if (bytes < left) {
        begun_bytes_ = (i == 0 ? begun_bytes_ : 0) + bytes;
        frames_[0] = frame;
        return;
      }
      bytes -= left;
      if (i == 0) begun_bytes_ = 0;
      finish(frame, done);
    }
    GRADRAIL_CHECK(bytes == 0);  // gather() offered no more
  }

  /// Bytes that the peer must still receive before another frame may follow. `zeros`: the memory behind it no longer
  /// exists.
  std::string rest_of_begun_frame(bool zeros) const;
  bool begun_frame_is_answer() const { return begun_bytes_ > 0 && frames_[0].lane == &answers_; }

 private:
  using Lane = std::deque<SendOp>;
  struct Frame {
    HeaderBytes header;
    const std::byte* payload = nullptr;
    uint64_t payload_bytes = 0;
    Lane* lane = nullptr;
    bool last = false;
  };
  /// Position in one lane of a batch being gathered.
  struct Cursor {
    Lane* lane;
    size_t index = 0;
    uint64_t sent_bytes = 0;
  };

  static Cursor cursor(Lane& lane) { return {&lane, 0, lane.empty() ? 0 : lane.front().sent_bytes}; }
  static void advance(Cursor& at, const Frame& frame);
  static bool next_frame(Cursor& at, Frame& frame);
  bool pick(Cursor& control, Cursor& answers, Cursor& puts, Frame& frame);
  size_t lay_out(size_t count);

  template <typename Done>
  void finish(const Frame& frame, Done& done) {
    GRADRAIL_CHECK(frame.lane != nullptr && !frame.lane->empty());  // invariant 2
    SendOp& op = frame.lane->front();
    op.sent_bytes += frame.payload_bytes;
    GRADRAIL_CHECK(frame.last == (op.sent_bytes == op.header.payload_bytes()));
    if (frame.lane != &control_) answers_turn_ = frame.lane == &puts_;
    if (!frame.last) return;
    done(std::as_const(op));
    frame.lane->pop_front();
  }

  /// 32 frames fill one sendmsg with 1.5 KiB of headers; more gain nothing over the cost of the call.
  static constexpr size_t kMaxFrames = 32;

  Lane control_;
  Lane answers_;
  Lane puts_;
  std::array<Frame, kMaxFrames> frames_;
  size_t frame_count_ = 0;
  uint64_t begun_bytes_ = 0;
  bool answers_turn_ = true;
  std::array<iovec, 2 * kMaxFrames> pieces_;
};

}  // namespace gradrail::transport::tcp
