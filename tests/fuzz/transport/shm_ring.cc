// An input is a list of operations on a ring: a byte selects the operation, and its operands follow. The first
// operation of a hostile peer ends the comparison with the honest content.
#include "transport/shm/ring.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <string>

#include "base/check.h"
#include "tests/fuzz/fuzz.h"
#include "transport/common/byte_codec.h"

namespace gradrail::transport::shm {
namespace {

/// An entry that the consumer must take.
struct Sent {
  bool is_message = false;
  uint64_t immediate = 0;
  std::string message;
};

class Session {
 public:
  explicit Session(Ring& ring)
      : ring_(ring), message_(std::make_unique<std::byte[]>(kMaxMessageBytes)), producer_(&ring), consumer_(&ring) {
    ring.head = 0;
    ring.sleeping = 0;
    for (RingEntry& entry : ring.entries) entry.sequence.store(0, std::memory_order_relaxed);
  }

  void run(common::ByteReader& in) {
    while (in.ok() && !broken_) {
      switch (in.number<uint8_t>() % 8) {
        case 0:
        case 1:
          send(in);
          break;
        case 2:
          notify(in);
          break;
        case 3:
        case 4:
          take();
          break;
        case 5:
          honest_ = false;
          entry_of(in).sequence.store(in.number<uint64_t>());
          break;
        case 6:
          honest_ = false;
          entry_of(in).header.store(in.number<uint64_t>());
          break;
        default:
          honest_ = false;
          ring_.head = in.number<uint64_t>();
      }
    }
    // A ring that broke stops its reader, so no take follows. Else the reader comes to an end.
    for (size_t i = 0; i <= 2 * kRingEntries && !broken_ && !consumer_.empty(); ++i) {
      GRADRAIL_CHECK(i < 2 * kRingEntries);
      take();
    }
    GRADRAIL_CHECK(!honest_ || sent_.empty());
  }

 private:
  RingEntry& entry_of(common::ByteReader& in) { return ring_.entries[in.number<uint16_t>() % kRingEntries]; }

  bool has_room(size_t entries) {
    const RingProducer::Room room = producer_.room_for(entries);
    GRADRAIL_CHECK(!honest_ || room != RingProducer::Room::broken);
    return room == RingProducer::Room::available;
  }

  void send(common::ByteReader& in) {
    const size_t bytes = in.number<uint16_t>() % (kMaxMessageBytes + 1);
    const auto fill = static_cast<char>(in.number<uint8_t>());
    if (!has_room(entries_for(bytes))) return;
    std::string message(bytes, fill);
    // Each piece differs, so that a wrong order is found.
    for (size_t i = 0; i < bytes; i += kEntryBodyBytes) message[i] = static_cast<char>(i / kEntryBodyBytes);
    producer_.publish_message(fuzz::bytes_of(message));
    sent_.push_back({.is_message = true, .message = std::move(message)});
  }

  void notify(common::ByteReader& in) {
    const auto immediate = in.number<uint64_t>();
    if (!has_room(1)) return;
    producer_.publish_immediate(immediate);
    sent_.push_back({.immediate = immediate});
  }

  void take() {
    using Kind = RingConsumer::Taken::Kind;
    const bool empty = consumer_.empty();
    const RingConsumer::Taken taken = consumer_.take({message_.get(), kMaxMessageBytes});
    GRADRAIL_CHECK(empty == (taken.kind == Kind::nothing));
    GRADRAIL_CHECK(taken.message_bytes <= kMaxMessageBytes);
    broken_ = taken.kind == Kind::broken;
    if (!honest_) return;
    GRADRAIL_CHECK(!broken_ && sent_.empty() == empty);
    if (empty) return;
    const Sent& next = sent_.front();
    GRADRAIL_CHECK(next.is_message == (taken.kind == Kind::message));
    GRADRAIL_CHECK(next.message == std::string_view(reinterpret_cast<char*>(message_.get()), taken.message_bytes));
    GRADRAIL_CHECK(next.is_message || next.immediate == taken.immediate);
    sent_.pop_front();
  }

  Ring& ring_;
  const std::unique_ptr<std::byte[]> message_;  ///< of the exact size: the sanitizer finds a write behind it
  RingProducer producer_;
  RingConsumer consumer_;
  std::deque<Sent> sent_;
  bool honest_ = true;
  bool broken_ = false;
};

}  // namespace
}  // namespace gradrail::transport::shm

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace gradrail::transport;
  static const auto ring = std::make_unique<shm::Ring>();
  common::ByteReader in(gradrail::fuzz::text_of(data, bytes));
  shm::Session(*ring).run(in);
  return 0;
}
