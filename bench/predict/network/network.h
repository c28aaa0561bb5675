#pragma once

#include <cstdint>
#include <vector>

#include "bench/predict/description.h"
#include "bench/predict/network/events.h"
#include "bench/predict/network/link.h"
#include "bench/predict/trace.h"
#include "ps/protocol/exchange_layout.h"

namespace gradrail::bench::predict {

/// The kernel and a thread move bytes in pieces of about this size (GRO, TCP small queues).
constexpr double kPieceBytes = 64 << 10;

/// A bucket on its way from a worker to a shard, or back.
struct Message {
  uint32_t worker = 0;
  uint32_t shard = 0;
  uint32_t bucket = 0;
  bool is_answer = false;
  bool is_dropped = false;  ///< answer: the gradient came too late
  ps::ArrivalKind kind{};   ///< push
  uint64_t step = 0;
  uint64_t version = 0;  ///< push: of the parameters of its gradient; answer: of the bucket
  double bytes = 0;
  Time not_before = 0;  ///< the sending thread has handed over the last byte
  Time departed = 0;
  Trace trace{};  ///< up to the departure; when it has arrived, up to the arrival

  // Used by the network.
  uint32_t connection = 0;
  uint32_t next = 0;    ///< behind it on its connection, or in the list of free places
  uint32_t links = 0;   ///< that it has not crossed yet
  Time crossed_at = 0;  ///< the link that it has crossed last
  Cause slowest{};      ///< that link
};

/// Shares of the capacity, in the busier direction of all NICs of a kind together.
struct Use {
  double worker_nic = 0;
  double shard_nic = 0;
};

/// NICs and connections. A message is on the NICs of both ends at once (cut-through). The messages of a link
/// share its rate. The message has crossed the network when both links have carried its bytes. A connection carries
/// its messages one after the other.
class Network {
 public:
  /// A message takes `workers_each` times longer at a ps.
  Network(const Cluster& cluster, double workers_each, EventQueue& events);

  /// The sending thread hands over the first bytes of the message at `departs_at`: an event of the message's index,
  /// which stays valid until release(). Then depart() is called.
  void send(const Message& message, Time departs_at);
  void release(uint32_t message);
  Message& message(uint32_t index) { return messages_[index]; }

  /// The sending thread hands over the first bytes.
  void depart(uint32_t message, Time now);
  void on_link(uint32_t link, Time now);

  void begin_measurement(Time now);
  Use use(Time now);

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Connection {
    uint32_t head = kNone, tail = kNone;
    Time last_arrival = 0;
  };
  /// Links of one kind and direction: each second one.
  struct Group {
    uint32_t first = 0, end = 0;
    double before = 0;  ///< bytes that they had carried at the begin of the measurement
  };

  uint32_t allocate();
  uint32_t link_of_worker(const Message& message) const { return 2 * (message.worker / cluster_.workers_per_host); }
  uint32_t link_of_ps(const Message& message) const { return first_ps_link_ + 2 * (message.shard / cluster_.shards); }
  uint32_t sending_link(const Message& message) const {
    return message.is_answer ? link_of_ps(message) : link_of_worker(message);
  }
  uint32_t receiving_link(const Message& message) const {
    return (message.is_answer ? link_of_worker(message) : link_of_ps(message)) + 1;
  }
  void begin(uint32_t message, Time now);
  void acknowledge(const Message& message, Time now);
  void transmitted(uint32_t message, Time now);
  double crossed(const Group& group, Time now);
  double share(const Group& group, Time now);

  const Cluster& cluster_;
  EventQueue& events_;
  std::vector<Link> links_;  ///< per host, first those of workers: to send, to receive
  const uint32_t first_ps_link_;
  std::vector<Connection> connections_;
  std::vector<Message> messages_;
  uint32_t free_ = kNone;
  std::vector<uint32_t> finished_;  ///< reused
  Group worker_send_, worker_receive_, ps_send_, ps_receive_;
  Time measured_from_ = 0;
};

}  // namespace gradrail::bench::predict
