#include "transport/rails/rail_contexts.h"

#include <utility>

#include "absl/strings/str_split.h"
#include "base/status.h"
#include "transport/rails/greeting.h"
#include "transport/rails/link_speed.h"

namespace gradrail::transport::rails {

absl::StatusOr<RailContexts> open_rails(const Transport& transport, OpenOptions options,
                                        absl::Span<const std::string> hosts) {
  RailContexts opened;
  absl::Status failure;
  for (size_t i = 0; i < hosts.size(); ++i) {
    options.bind_host = hosts[i];
    absl::StatusOr<std::unique_ptr<Context>> context =
        hosts[i].empty() ? absl::UnavailableError("this host has no route to it") : transport.open(options);
    if (context.ok()) {
      opened.contexts.push_back(*std::move(context));
      opened.rails.push_back(i);
    } else {
      opened.refused[i] = message_of(context.status());
      failure.Update(context.status());
    }
  }
  if (opened.contexts.empty()) return failure;
  return opened;
}

std::vector<std::string> hosts_towards(const std::string& rails) {
  std::vector<std::string> hosts;
  const std::vector<std::string> addresses = absl::StrSplit(rails.substr(kLanesPrefix.size()), ',');
  for (const std::string& address : addresses) hosts.push_back(link_towards(address).local_host);
  return hosts;
}

}  // namespace gradrail::transport::rails
