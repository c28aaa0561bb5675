#include "bench/predict/network/network.h"

#include <algorithm>
#include <cmath>

namespace gradrail::bench::predict {
namespace {

/// IP and TCP with time stamps (RFC 9293), in an IP packet of Ethernet.
constexpr double kTcpHeaderBytes = 52;
constexpr double kPacketBytes = 1500;
/// Around an IP packet on Ethernet: preamble, header, checksum, gap (IEEE 802.3).
constexpr double kFrameBytes = 38;
/// RFC 5681.
constexpr double kPacketsPerAck = 2;

double packets_of(double bytes) { return std::ceil(bytes / (kPacketBytes - kTcpHeaderBytes)); }

}  // namespace

Network::Network(const Cluster& cluster, double workers_each, EventQueue& events)
    : cluster_(cluster), events_(events), first_ps_link_(2 * cluster.worker_hosts()) {
  const uint32_t end = first_ps_link_ + 2 * cluster.ps;
  for (uint32_t i = 0; i < end; ++i) links_.emplace_back(cluster.nic_gbit / (i < first_ps_link_ ? 1 : workers_each));
  worker_send_ = {.first = 0, .end = first_ps_link_};
  worker_receive_ = {.first = 1, .end = first_ps_link_};
  ps_send_ = {.first = first_ps_link_, .end = end};
  ps_receive_ = {.first = first_ps_link_ + 1, .end = end};
  connections_.resize(size_t{2} * cluster.workers * cluster.shard_count());
}

void Network::send(const Message& message, Time departs_at) {
  const uint32_t index = allocate();
  messages_[index] = message;
  events_.insert(departs_at, Event::Kind::departure, index);
}

uint32_t Network::allocate() {
  if (free_ == kNone) {
    messages_.emplace_back();
    return static_cast<uint32_t>(messages_.size() - 1);
  }
  const uint32_t index = free_;
  free_ = messages_[index].next;
  return index;
}

void Network::release(uint32_t message) {
  messages_[message].next = free_;
  free_ = message;
}

void Network::depart(uint32_t index, Time now) {
  Message& message = messages_[index];
  const uint64_t pair = uint64_t{message.worker} * cluster_.shard_count() + message.shard;
  message.connection = static_cast<uint32_t>(pair * 2 + (message.is_answer ? 1 : 0));
  message.next = kNone;
  message.departed = now;
  message.crossed_at = 0;
  Connection& connection = connections_[message.connection];
  if (connection.head != kNone) {
    messages_[connection.tail].next = index;
    connection.tail = index;
    return;
  }
  connection.head = connection.tail = index;
  begin(index, now);
}

void Network::begin(uint32_t index, Time now) {
  Message& message = messages_[index];
  const double bytes = message.bytes + packets_of(message.bytes) * (kFrameBytes + kTcpHeaderBytes);
  message.links = 2;
  for (const uint32_t link : {sending_link(message), receiving_link(message)}) {
    const Time next = links_[link].begin(index, bytes, now);
    if (std::isfinite(next)) events_.insert(next, Event::Kind::link, link);
  }
}

void Network::on_link(uint32_t link, Time now) {
  finished_.clear();
  const Time next = links_[link].finish(now, finished_);
  if (std::isfinite(next)) events_.insert(next, Event::Kind::link, link);
  const Cause cause = link < first_ps_link_ ? Cause::worker_nic : Cause::shard_nic;
  for (const uint32_t index : finished_) {
    Message& message = messages_[index];
    // If links end together, the one nearest to the shard counts: most workers wait for it.
    if (now > message.crossed_at || cause > message.slowest) message.slowest = cause;
    message.crossed_at = now;
    if (--message.links == 0) transmitted(index, now);
  }
}

/// The acknowledgments of a message take the way back.
void Network::acknowledge(const Message& message, Time now) {
  const double bytes = packets_of(message.bytes) / kPacketsPerAck * (kFrameBytes + kTcpHeaderBytes);
  links_[receiving_link(message) - 1].delay(bytes, now);
  links_[sending_link(message) + 1].delay(bytes, now);
}

void Network::transmitted(uint32_t index, Time now) {
  Message& message = messages_[index];
  acknowledge(message, now);
  Connection& connection = connections_[message.connection];
  // Bytes of a connection arrive in order.
  const Time at = std::max(std::max(now, message.not_before) + cluster_.rtt_us * 1e3 / 2, connection.last_arrival);
  connection.last_arrival = at;
  message.trace.add(message.slowest, now - message.departed);
  message.trace.add(Cause::latency, at - now);
  events_.insert(at, Event::Kind::arrival, index);
  connection.head = message.next;
  if (connection.head != kNone) begin(connection.head, now);
}

double Network::crossed(const Group& group, Time now) {
  double bytes = 0;
  for (uint32_t link = group.first; link < group.end; link += 2) bytes += links_[link].crossed(now);
  return bytes;
}

double Network::share(const Group& group, Time now) {
  double bytes_per_ns = 0;
  for (uint32_t link = group.first; link < group.end; link += 2) bytes_per_ns += links_[link].bytes_per_ns();
  const double most = bytes_per_ns * (now - measured_from_);
  return most > 0 ? (crossed(group, now) - group.before) / most : 0.0;
}

void Network::begin_measurement(Time now) {
  measured_from_ = now;
  for (Group* group : {&worker_send_, &worker_receive_, &ps_send_, &ps_receive_}) group->before = crossed(*group, now);
}

Use Network::use(Time now) {
  return {.worker_nic = std::max(share(worker_send_, now), share(worker_receive_, now)),
          .shard_nic = std::max(share(ps_send_, now), share(ps_receive_, now))};
}

}  // namespace gradrail::bench::predict
