#pragma once

#include <cstdint>
#include <vector>

#include "base/random.h"
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
  double window = 0;        ///< bytes on their way without acknowledgment; 0: without --queue_kib
  double queued = 0;        ///< bytes of these, at most
  bool is_clocked = false;  ///< it waits for acknowledgments, because its bytes exceed the window
  uint32_t connection = 0;
  uint32_t next = 0;    ///< behind it on its connection, or in the list of free places
  uint32_t links = 0;   ///< that it has not crossed yet
  Time crossed_at = 0;  ///< the link that it has crossed last
  Cause slowest{};      ///< that link
};

/// Which hosts a message connects, and the use of their NICs.
struct Use {
  double worker_nic = 0;  ///< share of the capacity, in the busier direction of all such NICs together
  double shard_nic = 0;
  double fabric = 0;
};

/// NICs, switches and connections. A message is on all links of its way at once (cut-through). The messages of a link
/// share its rate. The message has crossed the network when all links have carried its bytes. A connection carries
/// its messages one after the other.
class Network {
 public:
  Network(const Cluster& cluster, EventQueue& events, uint64_t seed);

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
    float weight = 1;  ///< of its share of a link, from its first message until it is idle
    Time last_arrival = 0;
    double burst_bytes = 0;  ///< since it was idle
    Time sent_at = 0;        ///< at the rate that losses permit, all messages so far
  };
  /// Messages on a link, by what the windows of TCP permit.
  struct Windows {
    double clocked = 0;      ///< windows of the messages that wait for acknowledgments
    double queued = 0;       ///< bytes in the queue of the link, at most
    uint32_t unclocked = 0;  ///< messages that do not wait
  };
  /// Links of a host's NIC: first_link + 2 * rail for sending, the next one for receiving.
  struct Host {
    uint32_t first_link = 0;
    uint32_t leaf = 0;
  };

  uint32_t allocate();
  void add_link(double gbit, Cause cause);
  void add_hosts(uint32_t count, double gbit, Cause cause, std::vector<Host>& hosts);
  void place_on_leaves();
  /// The end that pushes.
  const Host& worker_host(const Message& message) const {
    return worker_hosts_[message.worker / cluster_.workers_per_host];
  }
  /// The end that answers.
  const Host& ps_host(const Message& message) const {
    return ps_hosts_[message.shard / cluster_.shards / cluster_.ps_per_host];
  }
  void acknowledge(const Message& message, Time now);
  const Host& source_of(const Message& message) const {
    return message.is_answer ? ps_host(message) : worker_host(message);
  }
  const Host& target_of(const Message& message) const {
    return message.is_answer ? worker_host(message) : ps_host(message);
  }
  uint32_t choose_rail(const Host& source, const Host& target, double bytes);
  void begin(uint32_t message, Time now);
  void begin_on_link(uint32_t link, uint32_t message, double wire_bytes, double weight, Time now);
  double window_of(const Message& message) const;
  double in_flight(uint32_t link) const;
  void change_windows(uint32_t link, const Message& message, bool begins, Time now);
  void transmitted(uint32_t message, Time now);
  Time delay_of_losses(double packets);
  double wire_bytes(double bytes) const;
  double crossed(const std::vector<uint32_t>& links, Time now);
  double capacity(const std::vector<uint32_t>& links) const;

  const Cluster& cluster_;
  const bool has_windows_;
  EventQueue& events_;
  Random random_;
  std::vector<Link> links_;       ///< in pairs of directions: the other one of link i is i ^ 1
  std::vector<Cause> causes_;     ///< for each link: that of a wait
  std::vector<Windows> windows_;  ///< per link
  std::vector<double> posted_;    ///< per link: bytes of messages that have departed and have not crossed the network
  std::vector<Host> worker_hosts_, ps_hosts_;
  uint32_t first_leaf_link_ = kNone;  ///< per leaf and rail: up, down; none without oversubscription
  std::vector<Connection> connections_;
  std::vector<Message> messages_;
  uint32_t free_ = kNone;
  std::vector<uint32_t> finished_;  ///< reused

  /// Links of one kind and direction, and what they had carried at the begin of the measurement.
  struct Group {
    std::vector<uint32_t> links;
    double before = 0;
  };
  Group worker_send_, worker_receive_, ps_send_, ps_receive_, up_, down_;
  Time measured_from_ = 0;
};

}  // namespace gradrail::bench::predict
