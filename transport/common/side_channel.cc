#include "transport/common/side_channel.h"

#include <array>
#include <utility>

#include "base/check.h"
#include "transport/common/byte_codec.h"

namespace gradrail::transport::common {
namespace {

/// Turns between two readings of the clock. A poll of the tcp context is a system call, or several; reading the clock
/// costs about as much as a turn.
constexpr uint32_t kTurnsPerClock = 64;
constexpr Duration kPollInterval = std::chrono::milliseconds(1);

/// "tcp a > b" without its first word.
std::string ends_of(const Connection& connection) {
  std::string text = connection.describe();
  return text.erase(0, text.find(' ') + 1);
}

}  // namespace

SideChannel::SideChannel(SideChannels& all, Connection* connection, Side side, SideChannelUser& user,
                         TimePoint deadline)
    : all_(all), connection_(connection), side_(side), user_(user), deadline_(deadline), ends_(ends_of(*connection)) {
  GRADRAIL_CHECK(connection->user_data() == 0);  // no other SideChannel has this connection
  // dispatch() finds this object by it.
  connection->set_user_data(reinterpret_cast<uint64_t>(this));
}

absl::Status SideChannel::send(std::string_view message) {
  if (connection_ == nullptr) return absl::UnavailableError("the side channel is closed");
  return connection_->send(as_bytes(message));
}

void SideChannel::close() {
  if (connection_ != nullptr) all_.close(std::exchange(connection_, nullptr));
}

bool SideChannel::introduce() { return accepted() && !std::exchange(introduced_, true); }

void SideChannels::poll(const std::function<void(Connection*)>& accept) {
  armed_ = false;
  polled_at_ = Clock::now();
  // The loop takes one event at a time: its handler may close this side channel and others, for which a longer batch
  // has events.
  std::array<Completion, 1> event;
  while (context_->poll(absl::MakeSpan(event)) > 0) {
    if (event[0].kind == Completion::Kind::connected) {
      accept(event[0].connection);
    } else {
      dispatch(event[0]);
    }
  }
}

void SideChannels::dispatch(const Completion& event) {
  // accept() has made the SideChannel of an open connection, or closed the connection (invariant).
  GRADRAIL_CHECK(event.connection->user_data() != 0);
  auto& channel = *reinterpret_cast<SideChannel*>(event.connection->user_data());
  GRADRAIL_CHECK(channel.connection_ == event.connection);
  switch (event.kind) {
    case Completion::Kind::message:
      return channel.user_.on_side_channel_message(as_text(event.message));
    case Completion::Kind::peer_lost:
      // The close precedes the handler, which must not use the connection any more.
      channel.close();
      return channel.user_.on_side_channel_lost(event.cause);
    default:
      // This side neither puts nor gets here, so the peer posted the operation.
      return channel.user_.on_side_channel_misused();
  }
}

bool SideChannels::due() {
  return armed_ || (++turn_ % kTurnsPerClock == 0 && Clock::now() - polled_at_ >= kPollInterval);
}

bool SideChannels::arm() {
  armed_ = true;
  return context_->arm();
}

}  // namespace gradrail::transport::common
