#include "launch/rendezvous/rank_join.h"

#include <algorithm>
#include <thread>

#include "base/status.h"
#include "fmt/format.h"
#include "gradrail/cluster.h"
#include "ps/admission/channel.h"
#include "ps/protocol/control_status.h"

namespace gradrail::launch {
namespace {

constexpr auto kBetweenTries = std::chrono::milliseconds(100);
constexpr auto kOneTry = std::chrono::seconds(5);

}  // namespace

absl::StatusOr<RankStreamPtr> join_first_rank(const std::string& address, const std::string& secret,
                                              proto::RankHello hello, TimePoint deadline,
                                              const std::function<void(const std::string&)>& say) {
  GRADRAIL_RETURN_IF_ERROR(parse_host_port(address).status());
  const std::string first = fmt::format("the first task of {} at {}", hello.job(), address);
  TimePoint progress = Clock::now() + kRankProgress;
  while (true) {
    const Duration left = std::min<Duration>(deadline - Clock::now(), kOneTry);
    absl::StatusOr<FileDescriptor> socket = ps::open_connection(address, secret, left);
    if (socket.ok()) {
      auto stream = std::make_unique<RankStream>(*std::move(socket), first);
      stream->set_joined(first);  // the first rank has proven the secret
      hello.set_first_address(stream->peer_host());
      proto::RankMessage message;
      *message.mutable_hello() = std::move(hello);
      GRADRAIL_RETURN_IF_ERROR(stream->send(message, Clock::now() + kOneTry));
      return stream;
    }
    // The cause is another version, another secret, or a server of another kind: a later attempt has the same result.
    if (absl::IsFailedPrecondition(socket.status()) || absl::IsUnauthenticated(socket.status()))
      return absl::Status(socket.status().code(), fmt::format("{}: {}", first, message_of(socket.status())));
    const std::string cause = ps::connection_cause(message_of(socket.status()));
    if (Clock::now() + kBetweenTries > deadline)
      return absl::DeadlineExceededError(fmt::format("{} did not admit this task in time: {}", first, cause));
    if (Clock::now() > progress) {
      say(fmt::format("waiting for {}: {}", first, cause));
      progress += kRankProgress;
    }
    std::this_thread::sleep_for(kBetweenTries);
  }
}

}  // namespace gradrail::launch
