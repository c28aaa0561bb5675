#include "transport/rails/bundle_connection.h"

#include <algorithm>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "transport/common/byte_codec.h"
#include "transport/rails/bundle_context.h"

namespace gradrail::transport::rails {
namespace {

/// Maximum number of waiting puts; a further put finds no room. An exchange posts two puts for each bucket.
constexpr size_t kMaxWaiting = 4096;
constexpr size_t kMaxUnsent = 64;

/// "tcp 2 rails × 4 streams (10.0.0.1, 10.1.0.1)", "tcp 4 streams", "tcp 1 of 2 rails (10.0.0.1)".
std::string path_text(const std::vector<std::unique_ptr<Lane>>& lanes, size_t rails_left_out) {
  std::vector<std::string> hosts;
  for (const auto& lane : lanes) {
    if (std::find(hosts.begin(), hosts.end(), lane->host) == hosts.end()) hosts.push_back(lane->host);
  }
  const size_t rails = hosts.size() + rails_left_out;
  std::string text = lanes[0]->connection->path();
  if (rails_left_out > 0) {
    text += fmt::format(" {} of {} rails", hosts.size(), rails);
  } else if (rails > 1) {
    text += fmt::format(" {} rails", rails);
  }
  if (lanes.size() > hosts.size()) {
    text += lanes.size() % hosts.size() == 0
                ? fmt::format("{}{} streams", rails > 1 ? " × " : " ", lanes.size() / hosts.size())
                : fmt::format(", {} streams", lanes.size());
  }
  return rails > 1 ? fmt::format("{} ({})", text, fmt::join(hosts, ", ")) : text;
}

absl::Status put_on(Lane& lane, const LocalSlice& source, const RemoteSlice& target, const PutOptions& options) {
  absl::Status posted = lane.connection->put(source, target, options);
  if (posted.ok() && lane.bytes != nullptr) lane.bytes->sent += source.bytes;
  return posted;
}

}  // namespace

BundleConnection::BundleConnection(BundleContext& context, std::vector<std::unique_ptr<Lane>> lanes,
                                   const std::vector<uint32_t>& mbit_per_s, size_t rails_left_out, std::string left_out,
                                   bool is_welcome)
    : context_(context),
      lanes_(std::move(lanes)),
      left_out_(std::move(left_out)),
      path_(path_text(lanes_, rails_left_out)),
      is_welcome_(is_welcome) {
  GRADRAIL_CHECK(!lanes_.empty() && mbit_per_s.size() == lanes_.size());
  // One unknown speed makes all of them equal: a comparison of 1 with megabits would be a guess.
  const bool is_known = std::find(mbit_per_s.begin(), mbit_per_s.end(), 0U) == mbit_per_s.end();
  for (const uint32_t speed : mbit_per_s) choice_.add(is_known ? speed : 1);
  for (size_t i = 0; i < lanes_.size(); ++i) {
    lanes_[i]->bundle = this;
    lanes_[i]->number = static_cast<uint32_t>(i);
  }
}

absl::StatusOr<RemoteRegion> BundleConnection::import(std::string_view key) {
  GRADRAIL_ASSIGN_OR_RETURN(const RemoteRegion region, lanes_[0]->connection->import(key));
  for (size_t i = 1; i < lanes_.size(); ++i) {
    GRADRAIL_ASSIGN_OR_RETURN(const RemoteRegion other, lanes_[i]->connection->import(key));
    GRADRAIL_CHECK(other == region);  // invariant 3
  }
  last_import_ = region;
  return region;
}

absl::Status BundleConnection::check(const LocalSlice& source, const RemoteSlice& target) const {
  if (lost_) return absl::UnavailableError(fmt::format("{}: lost", path_));
  // A put of 0 bytes needs no region.
  const size_t size = source.region == nullptr ? 0 : source.region->span().bytes;
  if (source.offset > size || source.bytes > size - source.offset)
    return absl::InvalidArgumentError(fmt::format("{}: {} bytes at {} are outside the local region of {} bytes", path_,
                                                  source.bytes, source.offset, size));
  if (source.bytes > 0 && (target.region == RemoteRegion{} || target.region > last_import_))
    return absl::InvalidArgumentError(fmt::format("{}: no imported region of that number", path_));
  return absl::OkStatus();
}

absl::Status BundleConnection::put(LocalSlice source, RemoteSlice target, PutOptions options) {
  if (is_single()) options.lane.reset();
  if (is_single() && is_welcome_ && waiting_.empty()) {
    return put_on(*lanes_[0], source, target, options);
  }
  GRADRAIL_RETURN_IF_ERROR(check(source, target));
  const Put put{source, target, options};
  if (options.lane) {
    if (!is_welcome_) return absl::ResourceExhaustedError(fmt::format("{}: not all lanes have arrived", path_));
    if (*options.lane >= lanes_.size() || open_lane_.value_or(*options.lane) != *options.lane || !waiting_.empty())
      return absl::InvalidArgumentError(fmt::format("{}: lane {} inside a group", path_, *options.lane));
    const bool begins = !open_lane_;
    open_lane_ = *options.lane;
    const absl::Status posted = post(*options.lane, put);
    if (!posted.ok() && begins) open_lane_.reset();
    return posted;
  }
  // The put waits behind groups that wait, and behind the rest of one (invariant 1).
  if (waiting_.empty() && is_welcome_) {
    if (open_lane_) return post(*open_lane_, put);
    if (const std::optional<size_t> lane = choice_.choose(source.bytes, source.bytes)) {
      open_lane_ = lane;
      absl::Status posted = post(*lane, put);
      if (posted.ok()) return posted;
      open_lane_.reset();
      if (!absl::IsResourceExhausted(posted)) return posted;
    }
  }
  if (waiting_.size() >= kMaxWaiting) return absl::ResourceExhaustedError(fmt::format("{}: queue full", path_));
  if (!has_waiting()) context_.visit_later(this);
  waiting_.push_back(put);
  waiting_bytes_ += source.bytes;
  return absl::OkStatus();
}

/// Posts a put of the group on open_lane_, which ends with it if it has a notice.
absl::Status BundleConnection::post(size_t lane_index, const Put& put) {
  GRADRAIL_CHECK(open_lane_ == lane_index);  // invariant 1
  Lane& lane = *lanes_[lane_index];
  if (is_single()) {
    open_lane_.reset();
    return put_on(lane, put.source, put.target, put.options);
  }
  const bool ends = put.options.immediate.has_value();
  PutOptions options{.immediate = put.options.immediate};
  if (ends || put.options.tag != 0) options.tag = lane.last_number + 1;
  GRADRAIL_RETURN_IF_ERROR(put_on(lane, put.source, put.target, options));
  choice_.begin(lane_index, put.source.bytes);
  open_bytes_ += put.source.bytes;
  if (options.tag != 0) {
    ++lane.last_number;
    lane.groups.push_back({lane.last_number, ends ? open_bytes_ : 0, put.options.tag});
  }
  if (ends) {
    open_lane_.reset();
    open_bytes_ = 0;
  }
  return absl::OkStatus();
}

uint64_t BundleConnection::first_group_bytes() const {
  uint64_t bytes = 0;
  for (const Put& put : waiting_) {
    bytes += put.source.bytes;
    if (put.options.immediate) break;
  }
  return bytes;
}

/// The peer has no place for messages that arrive before the last lane. False: some still wait.
bool BundleConnection::send_unsent() {
  while (!unsent_.empty()) {
    const absl::Status sent = lanes_[0]->connection->send(common::as_bytes(unsent_.front()));
    if (absl::IsResourceExhausted(sent)) return false;
    unsent_.pop_front();  // another error is one of lane 0, and its peer_lost follows
  }
  return true;
}

void BundleConnection::post_waiting() {
  if (!is_welcome_ || lost_ || !send_unsent()) return;
  while (!waiting_.empty() && !lost_) {
    const bool begins = !open_lane_;
    if (begins) open_lane_ = choice_.choose(first_group_bytes(), waiting_bytes_);
    if (!open_lane_) return;
    const Put put = waiting_.front();
    const absl::Status posted = post(*open_lane_, put);
    if (absl::IsResourceExhausted(posted)) {
      if (begins) open_lane_.reset();
      return;
    }
    // The owner has its OK already: an error of the lane now is the end of the bundle.
    if (!posted.ok()) return context_.lose(this, posted);
    waiting_.pop_front();
    waiting_bytes_ -= put.source.bytes;
  }
}

uint64_t BundleConnection::put_done(Lane& lane, uint64_t number) {
  const auto found = std::find_if(lane.groups.begin(), lane.groups.end(),
                                  [&](const Lane::Group& group) { return group.number == number; });
  GRADRAIL_CHECK(found != lane.groups.end());  // invariant 2
  const Lane::Group group = *found;
  lane.groups.erase(found);
  choice_.end(lane.number, group.bytes);
  return group.tag;
}

absl::Status BundleConnection::get(LocalSlice target, RemoteSlice source, uint64_t tag) {
  if (is_single() && is_welcome_) return lanes_[0]->connection->get(target, source, tag);
  GRADRAIL_RETURN_IF_ERROR(check(target, source));
  if (!is_welcome_) return absl::ResourceExhaustedError(fmt::format("{}: not all lanes have arrived", path_));
  return lanes_[choice_.least_loaded(target.bytes)]->connection->get(target, source, tag);
}

absl::Status BundleConnection::send(absl::Span<const std::byte> message) {
  if (lost_) return absl::UnavailableError(fmt::format("{}: lost", path_));
  if (is_welcome_ && unsent_.empty()) return lanes_[0]->connection->send(message);
  if (const size_t most = context_.capabilities().max_message_bytes; message.size() > most)
    return absl::InvalidArgumentError(
        fmt::format("{}: message of {} bytes, more than {}", path_, message.size(), most));
  if (unsent_.size() >= kMaxUnsent) return absl::ResourceExhaustedError(fmt::format("{}: queue full", path_));
  if (!has_waiting()) context_.visit_later(this);
  unsent_.emplace_back(common::as_text(message));
  return absl::OkStatus();
}

std::string BundleConnection::describe() const {
  const std::string first = lanes_[0]->connection->describe();
  if (is_single() && left_out_.empty()) return first;
  const std::string ends = first.substr(std::min(first.size(), lanes_[0]->connection->path().size()));
  return fmt::format("{}{}{}{}", path_, ends, left_out_.empty() ? "" : "; left out: ", left_out_);
}

void BundleConnection::count_received(uint32_t lane, uint64_t bytes) {
  if (RailBytes* const rail = lanes_.at(lane)->bytes; rail != nullptr) rail->received += bytes;
}

}  // namespace gradrail::transport::rails
