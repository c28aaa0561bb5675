#include "bench/predict/network/network.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace gradrail::bench::predict {
namespace {

/// IP and TCP with time stamps.
constexpr double kTcpHeaderBytes = 52;
/// Linux: least retransmission timeout.
constexpr Time kRetransmissionTimeout = 200e6;
/// Mathis et al., CCR 1997, with one acknowledgment for two packets less: √(3/2).
constexpr double kMathis = 1.22;
/// Mean window of CUBIC / its largest one: 1 - 0.3 / 4 (RFC 9438, β = 0.7).
constexpr double kMeanWindow = 0.925;
/// transport/tcp selects BBR beyond this round trip. BBR keeps its rate after a loss, and does not fill queues.
constexpr double kLongPathUs = 5000;

}  // namespace

Network::Network(const Cluster& cluster, EventQueue& events, uint64_t seed)
    : cluster_(cluster),
      has_windows_(cluster.queue_kib > 0 && cluster.rtt_us <= kLongPathUs),
      events_(events),
      random_(seed, /*stream=*/1) {
  add_hosts(cluster.worker_hosts(), cluster.nic_gbit, Cause::worker_nic, worker_hosts_);
  add_hosts(cluster.ps_hosts(), cluster.ps_nic_gbit > 0 ? cluster.ps_nic_gbit : cluster.nic_gbit, Cause::shard_nic,
            ps_hosts_);
  for (uint32_t rail = 0; rail < cluster.rails; ++rail) {
    const auto add = [&](const std::vector<Host>& hosts, Group& send, Group& receive) {
      for (const Host& host : hosts) {
        send.links.push_back(host.first_link + 2 * rail);
        receive.links.push_back(host.first_link + 2 * rail + 1);
      }
    };
    add(worker_hosts_, worker_send_, worker_receive_);
    add(ps_hosts_, ps_send_, ps_receive_);
  }
  if (cluster.oversubscription > 1) place_on_leaves();
  connections_.resize(size_t{2} * cluster.workers * cluster.shard_count() * cluster.rails);
}

void Network::add_link(double gbit, Cause cause) {
  links_.emplace_back(gbit);
  causes_.push_back(cause);
  windows_.emplace_back();
  posted_.push_back(0);
}

void Network::add_hosts(uint32_t count, double gbit, Cause cause, std::vector<Host>& hosts) {
  for (uint32_t i = 0; i < count; ++i) {
    hosts.push_back({.first_link = static_cast<uint32_t>(links_.size())});
    for (uint32_t rail = 0; rail < 2 * cluster_.rails; ++rail) add_link(gbit, cause);
  }
}

/// The hosts of ps processes are spread evenly over the leaf switches. Each rail has switches
/// of its own.
void Network::place_on_leaves() {
  const auto ps_count = static_cast<uint32_t>(ps_hosts_.size());
  const auto host_count = static_cast<uint32_t>(ps_count + worker_hosts_.size());
  std::vector<bool> is_ps(host_count);
  for (uint32_t i = 0; i < ps_count; ++i) {
    const auto place = static_cast<uint32_t>(uint64_t{i} * host_count / ps_count);
    is_ps[place] = true;
    ps_hosts_[i].leaf = place / cluster_.hosts_per_leaf;
  }
  uint32_t place = 0;
  const auto next_leaf = [&] {
    while (is_ps[place]) ++place;
    return place++ / cluster_.hosts_per_leaf;
  };
  for (uint32_t i = 0; i < worker_hosts_.size(); ++i) {
    worker_hosts_[i].leaf = next_leaf();
  }
  first_leaf_link_ = static_cast<uint32_t>(links_.size());
  const uint32_t leaves = (host_count + cluster_.hosts_per_leaf - 1) / cluster_.hosts_per_leaf;
  const double gbit = cluster_.nic_gbit * cluster_.hosts_per_leaf / cluster_.oversubscription;
  for (uint32_t i = 0; i < leaves * cluster_.rails; ++i) {
    up_.links.push_back(static_cast<uint32_t>(links_.size()));
    add_link(gbit, Cause::fabric);
    down_.links.push_back(static_cast<uint32_t>(links_.size()));
    add_link(gbit, Cause::fabric);
  }
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
  const Host& source = source_of(message);
  const Host& target = target_of(message);
  const uint32_t rail = choose_rail(source, target, message.bytes);
  const uint64_t pair = uint64_t{message.worker} * cluster_.shard_count() + message.shard;
  message.connection = static_cast<uint32_t>((pair * 2 + (message.is_answer ? 1 : 0)) * cluster_.rails + rail);
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
  connection.burst_bytes = 0;
  if (cluster_.unfairness > 0) connection.weight = static_cast<float>(std::exp(cluster_.unfairness * random_.normal()));
  begin(index, now);
}

/// The rail with the fewest bytes to carry at its busier end. All rails of a host have one rate.
uint32_t Network::choose_rail(const Host& source, const Host& target, double bytes) {
  uint32_t best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (uint32_t rail = 0; rail < cluster_.rails; ++rail) {
    const double waiting =
        std::max(posted_[source.first_link + 2 * rail] / links_[source.first_link].bytes_per_ns(),
                 posted_[target.first_link + 2 * rail + 1] / links_[target.first_link].bytes_per_ns());
    if (waiting < least) {
      least = waiting;
      best = rail;
    }
  }
  posted_[source.first_link + 2 * best] += bytes;
  posted_[target.first_link + 2 * best + 1] += bytes;
  return best;
}

double Network::wire_bytes(double bytes) const {
  const double payload = cluster_.mtu - kTcpHeaderBytes;
  const double headers = std::ceil(bytes / payload) * (cluster_.frame_bytes + kTcpHeaderBytes);
  // Each lost packet crosses the sender's NIC once more.
  return (bytes + headers) / (1 - cluster_.loss);
}

void Network::begin(uint32_t index, Time now) {
  Message& message = messages_[index];
  const Host& source = source_of(message);
  const Host& target = target_of(message);
  const uint32_t rail = message.connection % cluster_.rails;
  const double bytes = wire_bytes(message.bytes);
  if (cluster_.loss > 0 && cluster_.rtt_us <= kLongPathUs) {
    const double packet = cluster_.mtu - kTcpHeaderBytes;
    const double bytes_per_ns = packet / (cluster_.rtt_us * 1e3) * kMathis / std::sqrt(cluster_.loss);
    Time& sent_at = connections_[message.connection].sent_at;
    sent_at = std::max(now, sent_at) + message.bytes / bytes_per_ns;
    message.not_before = std::max(message.not_before, sent_at);
  }
  std::array<uint32_t, 4> way{source.first_link + 2 * rail, target.first_link + 2 * rail + 1};
  message.links = 2;
  if (first_leaf_link_ != kNone && source.leaf != target.leaf) {
    way[2] = first_leaf_link_ + 2 * (source.leaf * cluster_.rails + rail);
    way[3] = first_leaf_link_ + 2 * (target.leaf * cluster_.rails + rail) + 1;
    message.links = 4;
  }
  Connection& connection = connections_[message.connection];
  if (has_windows_) {
    message.window = std::max<double>(window_of(message) * connection.weight, cluster_.mtu);
    message.queued = std::min(message.window, bytes);
    connection.burst_bytes += bytes;
    message.is_clocked = connection.burst_bytes > message.window;
  }
  const double weight = connection.weight;
  for (uint32_t i = 0; i < message.links; ++i) begin_on_link(way[i], index, bytes, weight, now);
}

void Network::begin_on_link(uint32_t link, uint32_t message, double wire_bytes, double weight, Time now) {
  const Time next = links_[link].begin(message, wire_bytes, weight, now);
  if (std::isfinite(next)) events_.insert(next, Event::Kind::link, link);
  change_windows(link, messages_[message], true, now);
}

/// The connections of the busier end share its queue and the bytes on their way, and fill both.
double Network::window_of(const Message& message) const {
  const auto window_at = [&](uint32_t connections, const Host& host) {
    return (1024.0 * cluster_.queue_kib + in_flight(host.first_link)) / connections;
  };
  const uint32_t at_worker = cluster_.workers_per_host * cluster_.shard_count();
  const uint32_t at_shard = cluster_.workers * cluster_.shards * cluster_.ps_per_host;
  return kMeanWindow * std::min(window_at(at_worker, worker_host(message)), window_at(at_shard, ps_host(message)));
}

/// Bytes of a round trip without load.
double Network::in_flight(uint32_t link) const { return links_[link].bytes_per_ns() * cluster_.rtt_us * 1e3; }

/// A message begins or ends on a link. Acknowledgments of one direction wait in the queue of the other one, if the
/// windows there exceed what is on its way. The direction has its windows in each round trip through that queue.
/// Source  Zhang, Shenker, Clark, SIGCOMM 1991 (two-way traffic).
void Network::change_windows(uint32_t link, const Message& message, bool begins, Time now) {
  if (!has_windows_) return;
  Windows& windows = windows_[link];
  const double sign = begins ? 1 : -1;
  windows.queued += sign * message.queued;
  if (message.is_clocked)
    windows.clocked += sign * message.window;
  else
    begins ? ++windows.unclocked : --windows.unclocked;
  for (const uint32_t one : {link, link ^ 1}) {
    if (links_[one].is_idle()) continue;
    const Windows& own = windows_[one];
    const double other = windows_[one ^ 1].queued;
    const bool is_full = own.unclocked > 0 || own.clocked >= other || other <= in_flight(one);
    const Time next = links_[one].limit(is_full ? 1 : own.clocked / other, now);
    if (std::isfinite(next)) events_.insert(next, Event::Kind::link, one);
  }
}

void Network::on_link(uint32_t link, Time now) {
  finished_.clear();
  const Time next = links_[link].finish(now, finished_);
  if (std::isfinite(next)) events_.insert(next, Event::Kind::link, link);
  for (const uint32_t index : finished_) {
    Message& message = messages_[index];
    change_windows(link, message, false, now);
    // If links end together, the one nearest to the shard counts: most workers wait for it.
    if (now > message.crossed_at || causes_[link] > message.slowest) message.slowest = causes_[link];
    message.crossed_at = now;
    if (--message.links == 0) transmitted(index, now);
  }
}

/// The message leaves the rail. Its acknowledgments take the way back.
void Network::acknowledge(const Message& message, Time now) {
  const Host& source = source_of(message);
  const Host& target = target_of(message);
  const uint32_t rail = message.connection % cluster_.rails;
  posted_[source.first_link + 2 * rail] -= message.bytes;
  posted_[target.first_link + 2 * rail + 1] -= message.bytes;
  const double packets = std::ceil(message.bytes / (cluster_.mtu - kTcpHeaderBytes));
  const double bytes = packets / cluster_.packets_per_ack * (cluster_.frame_bytes + kTcpHeaderBytes);
  links_[target.first_link + 2 * rail].delay(bytes, now);
  links_[source.first_link + 2 * rail + 1].delay(bytes, now);
}

void Network::transmitted(uint32_t index, Time now) {
  Message& message = messages_[index];
  acknowledge(message, now);
  Connection& connection = connections_[message.connection];
  Time at = std::max(now, message.not_before) + cluster_.rtt_us * 1e3 / 2;
  if (cluster_.loss > 0) at += delay_of_losses(std::ceil(message.bytes / (cluster_.mtu - kTcpHeaderBytes)));
  at = std::max(at, connection.last_arrival);  // bytes of a connection arrive in order
  connection.last_arrival = at;
  message.trace.add(message.slowest, now - message.departed);
  message.trace.add(Cause::latency, at - now);
  events_.insert(at, Event::Kind::arrival, index);
  connection.head = message.next;
  if (connection.head != kNone) begin(connection.head, now);
}

/// A lost packet returns after a round trip. No packet shows the loss of the last one. A
/// probe follows after two round trips (RFC 8985), and the timeout follows a lost probe.
Time Network::delay_of_losses(double packets) {
  const Time round_trip = cluster_.rtt_us * 1e3;
  Time delay = 0;
  if (random_.uniform() > std::pow(1 - cluster_.loss, packets)) delay += round_trip;
  if (random_.uniform() < cluster_.loss) {
    delay += 2 * round_trip;
    if (random_.uniform() < cluster_.loss) delay += kRetransmissionTimeout;
  }
  return delay;
}

double Network::crossed(const std::vector<uint32_t>& links, Time now) {
  double bytes = 0;
  for (const uint32_t link : links) bytes += links_[link].crossed(now);
  return bytes;
}

double Network::capacity(const std::vector<uint32_t>& links) const {
  double bytes_per_ns = 0;
  for (const uint32_t link : links) bytes_per_ns += links_[link].bytes_per_ns();
  return bytes_per_ns;
}

void Network::begin_measurement(Time now) {
  measured_from_ = now;
  for (Group* group : {&worker_send_, &worker_receive_, &ps_send_, &ps_receive_, &up_, &down_})
    group->before = crossed(group->links, now);
}

Use Network::use(Time now) {
  const auto share = [&](const Group& group) {
    const double most = capacity(group.links) * (now - measured_from_);
    return most > 0 ? (crossed(group.links, now) - group.before) / most : 0.0;
  };
  return {.worker_nic = std::max(share(worker_send_), share(worker_receive_)),
          .shard_nic = std::max(share(ps_send_), share(ps_receive_)),
          .fabric = std::max(share(up_), share(down_))};
}

}  // namespace gradrail::bench::predict
