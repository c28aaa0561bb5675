#include "launch/task/task_options.h"

#include "base/status.h"

namespace gradrail::launch {

absl::StatusOr<BindAddress> parse_bind(std::string_view text) {
  GRADRAIL_ASSIGN_OR_RETURN(const HostPort parsed, parse_host_port(text));
  // parse_host_port() adds the default port: only a text that named a port is equal.
  return BindAddress{.text = std::string(text), .host = parsed.host, .has_port = text == to_string(parsed)};
}

std::string host_of(const std::string& address) {
  const absl::StatusOr<HostPort> parsed = parse_host_port(address);
  return parsed.ok() ? parsed->host : address;
}

}  // namespace gradrail::launch
