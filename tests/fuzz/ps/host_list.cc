// Addresses of tasks, as flags and files have them.
#include <vector>

#include "base/check.h"
#include "base/status.h"
#include "gradrail/cluster.h"
#include "launch/launcher/rendezvous_url.h"
#include "tests/fuzz/fuzz.h"

namespace gradrail::ps {
namespace {

void try_address(std::string_view text) {
  const absl::StatusOr<HostPort> address = parse_host_port(text);
  if (!address.ok()) return fuzz::check_refusal(address.status(), absl::StatusCode::kInvalidArgument, text);
  GRADRAIL_CHECK(!address->host.empty());
  const absl::StatusOr<HostPort> again = parse_host_port(to_string(*address));
  GRADRAIL_CHECK(again.ok() && again->host == address->host && again->port == address->port);
}

void try_list(std::string_view text) {
  const absl::StatusOr<std::vector<std::string>> list = parse_host_list(text);
  if (!list.ok()) return fuzz::check_refusal(list.status(), absl::StatusCode::kInvalidArgument, "");
  GRADRAIL_CHECK(!list->empty());
  std::string joined;
  for (const std::string& each : *list) {
    GRADRAIL_CHECK(parse_host_port(each).ok());
    joined += each + ",";
  }
  const absl::StatusOr<std::vector<std::string>> again = parse_host_list(joined);
  GRADRAIL_CHECK(again.ok() && *again == *list);
}

void try_rendezvous(std::string_view text) {
  const absl::StatusOr<launch::RendezvousUrl> url = launch::parse_tcp_rendezvous(text);
  if (!url.ok()) return fuzz::check_refusal(url.status(), absl::StatusCode::kInvalidArgument, "tcp://HOST");
  GRADRAIL_CHECK(!url->is_etcd() && parse_host_port(url->first_task).ok());
}

void try_cluster(std::string_view text) {
  const size_t line = std::min(text.find('\n'), text.size());
  const absl::StatusOr<ClusterSpec> cluster =
      cluster_from_hosts(text.substr(0, line), text.substr(std::min(text.size(), line + 1)));
  if (!cluster.ok()) return fuzz::check_refusal(cluster.status(), absl::StatusCode::kInvalidArgument, "--ps_hosts");
  GRADRAIL_CHECK(!cluster->ps.empty() && !cluster->workers.empty() && cluster->workers.size() <= kMaxWorkers);
}

}  // namespace
}  // namespace gradrail::ps

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace gradrail::ps;
  const std::string_view text = gradrail::fuzz::text_of(data, bytes);
  try_address(text);
  try_list(text);
  try_rendezvous(text);
  try_cluster(text);
  return 0;
}
