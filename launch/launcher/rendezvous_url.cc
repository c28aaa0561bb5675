#include "launch/launcher/rendezvous_url.h"

#include <algorithm>

#include "absl/strings/str_split.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gradrail/cluster.h"

namespace gradrail::launch {
namespace {

constexpr std::string_view kTcpScheme = "tcp://";
constexpr uint16_t kEtcdPort = 2379;
// A name, not a limit of etcd: it stands in each line of the log.
constexpr size_t kLongestJob = 128;

/// The scheme of etcd's own URLs for ours; "" for others.
std::string scheme_of(std::string_view word) {
  // http:// is what etcd prints as its own address, so it can be copied.
  if (word == "etcd" || word == "http") return "http";
  return word == "etcds" || word == "https" ? "https" : "";
}

bool is_job_name(std::string_view job) {
  // No '/': the name is one part of a key, and another job must not lie below it.
  const auto fits = [](unsigned char c) { return std::isalnum(c) || c == '.' || c == '_' || c == '-'; };
  return !job.empty() && job.size() <= kLongestJob && std::all_of(job.begin(), job.end(), fits);
}

absl::StatusOr<std::string> endpoint(const std::string& scheme, const std::string& text) {
  GRADRAIL_ASSIGN_OR_RETURN(HostPort address, parse_host_port(text));
  // A URL without a port gets etcd's port, not ours.
  // parse_host_port() has filled in the port of a ps.
  if (to_string(address) != text) address.port = kEtcdPort;
  return fmt::format("{}://{}", scheme, to_string(address));
}

}  // namespace

absl::StatusOr<RendezvousUrl> parse_rendezvous(std::string_view text) {
  return text.starts_with(kTcpScheme) ? parse_tcp_rendezvous(text) : parse_etcd_rendezvous(text);
}

absl::StatusOr<RendezvousUrl> parse_tcp_rendezvous(std::string_view text) {
  const absl::StatusOr<HostPort> address = text.starts_with(kTcpScheme)
                                               ? parse_host_port(text.substr(kTcpScheme.size()))
                                               : absl::InvalidArgumentError("it is not the address of a host");
  if (address.ok() && address->port == 0)
    return absl::InvalidArgumentError(
        fmt::format("{}: no task can be found at port 0; give one from 1 to 65535", text));
  if (address.ok()) {
    RendezvousUrl url;
    url.text = text;
    url.first_task = to_string(*address);
    return url;
  }
  return absl::InvalidArgumentError(
      fmt::format("{}: {}; the correct form is tcp://HOST:PORT", text, message_of(address.status())));
}

absl::StatusOr<RendezvousUrl> parse_etcd_rendezvous(std::string_view text) {
  const auto bad = [&](std::string_view why) {
    return absl::InvalidArgumentError(
        fmt::format("{}: {}; right is etcd://HOST:2379/JOB, with several HOST:PORT separated by commas, or "
                    "etcds:// for TLS, or tcp://HOST:PORT for the tasks of srun, mpirun or torchrun",
                    text, why));
  };
  const size_t colon = text.find("://");
  const std::string scheme = colon == text.npos ? "" : scheme_of(text.substr(0, colon));
  if (scheme.empty()) return bad("no address of an etcd");
  const std::string_view rest = text.substr(colon + 3);
  const size_t slash = rest.find('/');
  if (slash == rest.npos || !is_job_name(rest.substr(slash + 1)))
    return bad("a job has a name of letters, digits, '.', '_' and '-' behind the address");
  RendezvousUrl url;
  url.text = text;
  url.job = rest.substr(slash + 1);
  const std::string hosts(rest.substr(0, slash));
  for (const absl::string_view host : absl::StrSplit(hosts, ',', absl::SkipWhitespace())) {
    const absl::StatusOr<std::string> found = endpoint(scheme, std::string(host));
    if (!found.ok()) return bad(message_of(found.status()));
    url.endpoints.push_back(*found);
  }
  if (url.endpoints.empty()) return bad("no host");
  return url;
}

}  // namespace gradrail::launch
