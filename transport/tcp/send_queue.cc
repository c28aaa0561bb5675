#include "transport/tcp/send_queue.h"

#include <algorithm>
#include <cassert>

#include "base/check.h"

namespace gradrail::transport::tcp {

void SendQueue::push(SendOp op) {
  GRADRAIL_CHECK(op.header.type != FrameType::message || op.body.size() == op.header.length);
  Lane& lane = op.header.type == FrameType::put ? puts_ : op.header.type == FrameType::get_data ? answers_ : control_;
  lane.push_back(std::move(op));
}

void SendQueue::clear() {
  control_.clear();
  answers_.clear();
  puts_.clear();
  frame_count_ = 0;
  begun_bytes_ = 0;
}

bool SendQueue::next_frame(Cursor& at, Frame& frame) {
  if (at.index >= at.lane->size()) return false;
  const SendOp& op = (*at.lane)[at.index];
  FrameHeader header = op.header;
  frame.payload = op.header.type == FrameType::message ? reinterpret_cast<const std::byte*>(op.body.data()) : op.source;
  frame.payload_bytes = std::min(op.header.payload_bytes() - at.sent_bytes, kMaxFramePayloadBytes);
  frame.lane = at.lane;
  frame.last = at.sent_bytes + frame.payload_bytes == op.header.payload_bytes();
  if (frame.payload_bytes > 0) frame.payload += at.sent_bytes;
  // A get_request has no payload: its length is that of the requested bytes, and it is never split.
  if (header.type != FrameType::get_request) {
    header.length = frame.payload_bytes;
    header.offset += at.sent_bytes;
  }
  // The stream keeps the order, so all bytes of the put have landed when the last frame notifies.
  header.notify = header.notify && frame.last;
  frame.header = encode(header);
  return true;
}

void SendQueue::advance(Cursor& at, const Frame& frame) {
  at.sent_bytes += frame.payload_bytes;
  if (!frame.last) return;
  ++at.index;
  at.sent_bytes = 0;  // only the front operation of a lane can have been sent in part
}

bool SendQueue::pick(Cursor& control, Cursor& answers, Cursor& puts, Frame& frame) {
  Cursor* const first = answers_turn_ ? &answers : &puts;
  Cursor* const second = answers_turn_ ? &puts : &answers;
  for (Cursor* at : {&control, first, second}) {
    if (!next_frame(*at, frame)) continue;
    advance(*at, frame);
    if (at != &control) answers_turn_ = at == &puts;
    return true;
  }
  return false;
}

absl::Span<const iovec> SendQueue::gather(uint64_t budget_bytes) {
  Cursor control = cursor(control_);
  Cursor answers = cursor(answers_);
  Cursor puts = cursor(puts_);
  size_t count = 0;
  uint64_t bytes = 0;
  const bool turn = answers_turn_;
  if (begun_bytes_ > 0) {
    // Part of this header is on the wire: the rest must come from the same encoding.
    const Frame& begun = frames_[0];
    GRADRAIL_CHECK(begun.lane != nullptr && !begun.lane->empty());  // invariant 1
    GRADRAIL_CHECK(begun_bytes_ < kHeaderBytes + begun.payload_bytes);
    if (begun.lane != &control_) answers_turn_ = begun.lane == &puts_;
    advance(begun.lane == &control_ ? control : begun.lane == &answers_ ? answers : puts, begun);
    bytes = kHeaderBytes + begun.payload_bytes - begun_bytes_;
    count = 1;
  }
  while (count < kMaxFrames && (count == 0 || bytes < budget_bytes) && pick(control, answers, puts, frames_[count])) {
    bytes += kHeaderBytes + frames_[count].payload_bytes;
    ++count;
  }
  answers_turn_ = turn;  // consume() moves it on for what is really sent
  frame_count_ = count;
  return {pieces_.data(), lay_out(count)};
}

size_t SendQueue::lay_out(size_t count) {
  size_t pieces = 0;
  const auto add = [&](const std::byte* data, uint64_t bytes, uint64_t skip) {
    if (bytes <= skip) return;
    assert(pieces < pieces_.size());
    pieces_[pieces++] = {const_cast<std::byte*>(data + skip), bytes - skip};
  };
  for (size_t i = 0; i < count; ++i) {
    const Frame& frame = frames_[i];
    const uint64_t skip = i == 0 ? begun_bytes_ : 0;
    add(frame.header.data(), kHeaderBytes, std::min<uint64_t>(skip, kHeaderBytes));
    add(frame.payload, frame.payload_bytes, skip - std::min<uint64_t>(skip, kHeaderBytes));
  }
  return pieces;
}

std::string SendQueue::rest_of_begun_frame(bool zeros) const {
  std::string rest;
  if (begun_bytes_ == 0) return rest;
  const Frame& frame = frames_[0];
  const uint64_t header_sent = std::min<uint64_t>(begun_bytes_, kHeaderBytes);
  const uint64_t payload_sent = begun_bytes_ - header_sent;
  rest.append(reinterpret_cast<const char*>(frame.header.data()) + header_sent, kHeaderBytes - header_sent);
  const uint64_t left = frame.payload_bytes - payload_sent;
  if (zeros) return rest.append(left, '\0');
  return rest.append(reinterpret_cast<const char*>(frame.payload) + payload_sent, left);
}

}  // namespace gradrail::transport::tcp
