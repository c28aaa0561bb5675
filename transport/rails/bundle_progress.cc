// Completions of lanes: joined to bundles, then reported as those of the bundle.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "transport/common/byte_codec.h"
#include "transport/rails/bundle_context.h"

namespace gradrail::transport::rails {
namespace {

Lane& lane_of(const Connection& connection) {
  auto* const lane = reinterpret_cast<Lane*>(connection.user_data());
  GRADRAIL_CHECK(lane != nullptr && lane->connection == &connection);  // invariant 1
  return *lane;
}

}  // namespace

size_t BundleContext::poll(absl::Span<Completion> out) {
  ready_.release_delivered([](const std::unique_ptr<std::string>&) {});
  if (!joining_.empty()) expire();
  size_t count = ready_.take(out);
  if (count < out.size()) count += poll_child(out.subspan(count));
  close_dropped();
  if (!waiting_.empty()) {
    for (BundleConnection* connection : std::exchange(waiting_, {})) {
      connection->post_waiting();
      if (connection->has_waiting() && !connection->lost()) waiting_.push_back(connection);
    }
  }
  if (!ready_.empty() && count < out.size()) count += ready_.take(out.subspan(count));
  return count;
}

/// Replaces the completions of lanes by those of their bundles, in place; returns their number.
size_t BundleContext::poll_child(absl::Span<Completion> out) {
  const size_t arrived = child_->poll(out);
  size_t kept = 0;
  for (size_t i = 0; i < arrived; ++i) {
    if (!translate(out[i])) continue;
    if (!ready_.empty()) {
      hold_back(out[i]);  // invariant 2
    } else {
      if (kept != i) out[kept] = std::move(out[i]);
      ++kept;
    }
  }
  return kept;
}

/// False: the owner gets nothing, or gets it from `ready_`.
bool BundleContext::translate(Completion& completion) {
  using Kind = Completion::Kind;
  if (completion.kind == Kind::connected) {
    accept(completion.connection, completion.tag);
    return false;
  }
  Lane& lane = lane_of(*completion.connection);
  if (lane.bundle == nullptr) {
    if (!lane.dropped) on_joining(lane, completion);
    return false;
  }
  BundleConnection& bundle = *lane.bundle;
  completion.connection = &bundle;
  if (bundle.is_single() && bundle.is_welcome()) return true;
  if (bundle.lost()) return false;  // peer_lost is the last completion of a connection
  if (!bundle.is_welcome() && completion.kind != Kind::peer_lost) {
    if (completion.kind == Kind::message && common::as_text(completion.message) == kWelcome) {
      bundle.set_welcome();
    } else {
      lose(&bundle, absl::DataLossError(fmt::format("{}: the peer did not welcome the lanes", bundle.path())));
    }
    return false;
  }
  if (completion.kind == Kind::put_done) {
    completion.tag = bundle.put_done(lane, completion.tag);
    return completion.tag != 0;
  }
  if (completion.kind == Kind::put_arrived) completion.lane = lane.number;
  if (completion.kind == Kind::peer_lost) bundle.set_lost();
  return true;
}

void BundleContext::hold_back(const Completion& completion) {
  report(completion, std::string(common::as_text(completion.message)));
}

/// `body` becomes the memory of completion.message.
void BundleContext::report(Completion completion, std::string body) {
  auto owned = body.empty() ? nullptr : std::make_unique<std::string>(std::move(body));
  if (owned != nullptr) completion.message = common::as_bytes(*owned);
  ready_.push(std::move(completion), std::move(owned));
}

void BundleContext::accept(Connection* connection, uint64_t listener) {
  const Place& place = places_[listener];
  if (place.is_plain) {
    Completion connected;
    connected.kind = Completion::Kind::connected;
    connected.connection = add_single(connection, place.host);
    return report(std::move(connected));
  }
  auto lane = std::make_unique<Lane>(Lane{.connection = connection, .host = place.host});
  connection->set_user_data(reinterpret_cast<uint64_t>(lane.get()));
  lane->deadline = Clock::now() + limits_.join;
  joining_.push_back(std::move(lane));
  if (joining_.size() > limits_.joining) drop_joining(*joining_.front(), "too many lanes wait for their bundles");
}

void BundleContext::on_joining(Lane& lane, const Completion& completion) {
  using Kind = Completion::Kind;
  if (completion.kind == Kind::peer_lost) return drop_joining(lane, message_of(completion.cause));
  if (!lane.greeting) {
    // A put before the greeting needs a key that no peer has yet.
    if (completion.kind != Kind::message) return drop_joining(lane, "a transfer before the greeting");
    return join(lane, completion.message);
  }
  drop_joining(lane, "a message or a transfer before all lanes have arrived");
}

void BundleContext::join(Lane& lane, absl::Span<const std::byte> message) {
  absl::StatusOr<Greeting> greeting = Greeting::decode(message);
  if (!greeting.ok()) return drop_joining(lane, message_of(greeting.status()));
  std::vector<Lane*> lanes(greeting->lanes, nullptr);
  size_t present = 1;
  for (const auto& other : joining_) {
    if (!other->greeting || other->greeting->id != greeting->id) continue;
    // The first lane of an id counts: a later one with other values is not of the same peer.
    if (other->greeting->lanes != greeting->lanes || other->greeting->lane == greeting->lane)
      return drop_joining(lane, "a greeting that does not agree with another lane of its bundle");
    lanes[other->greeting->lane] = other.get();
    ++present;
  }
  lanes[greeting->lane] = &lane;
  lane.greeting = *std::move(greeting);
  if (present < lanes.size()) return;
  std::vector<std::unique_ptr<Lane>> taken;
  std::vector<uint32_t> speeds;
  for (const Lane* each : lanes) {
    taken.push_back(take_joining(*each));
    speeds.push_back(taken.back()->greeting->mbit_per_s);
  }
  Lane* const taken_first = taken[0].get();
  count_rails(taken);
  Completion completion;
  completion.kind = Completion::Kind::connected;
  completion.connection = add(std::make_unique<BundleConnection>(*this, std::move(taken), speeds, 0, "", true));
  report(completion);
  // A failure is one of lane 0, and its peer_lost follows.
  taken_first->connection->send(common::as_bytes(kWelcome)).IgnoreError();
}

std::unique_ptr<Lane> BundleContext::take_joining(const Lane& lane) {
  const auto place =
      std::find_if(joining_.begin(), joining_.end(), [&](const auto& each) { return each.get() == &lane; });
  GRADRAIL_CHECK(place != joining_.end());  // invariant 1
  std::unique_ptr<Lane> taken = std::move(*place);
  joining_.erase(place);
  return taken;
}

/// Closes a lane, and with it the others of its bundle, which can no longer be complete.
void BundleContext::drop_joining(Lane& lane, std::string_view why) {
  rate_limited_log_.write(
      fmt::format("rails: closed {}: a lane without its bundle: {}", lane.connection->describe(), why));
  std::vector<Lane*> theirs = {&lane};
  for (const auto& other : joining_) {
    if (other.get() != &lane && lane.greeting && other->greeting && other->greeting->id == lane.greeting->id)
      theirs.push_back(other.get());
  }
  for (Lane* each : theirs) {
    each->dropped = true;
    dropped_.push_back(take_joining(*each));
  }
}

void BundleContext::close_dropped() {
  for (const auto& lane : dropped_) close_lane(*lane);
  dropped_.clear();
}

void BundleContext::expire() {
  const TimePoint now = Clock::now();
  while (!joining_.empty() && joining_.front()->deadline <= now)
    drop_joining(*joining_.front(), "the other lanes did not connect in time");
}

}  // namespace gradrail::transport::rails
