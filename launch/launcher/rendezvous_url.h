#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace gradrail::launch {

/// The value of --rendezvous: where the tasks of one job find each other.
struct RendezvousUrl {
  std::string text;                    ///< as typed; "": the flag is not given
  std::string first_task;              ///< tcp://: "host:port" of the first task of a launcher
  std::vector<std::string> endpoints;  ///< etcd://, or etcds:// for TLS: "http://host:2379"
  std::string job;                     ///< its name in etcd

  bool is_given() const { return !text.empty(); }
  bool is_etcd() const { return !endpoints.empty(); }
};

/// "tcp://host:port", or an etcd.
/// Errors  INVALID_ARGUMENT: the cause and the correct form. The same of the functions below.
absl::StatusOr<RendezvousUrl> parse_rendezvous(std::string_view text);

absl::StatusOr<RendezvousUrl> parse_tcp_rendezvous(std::string_view text);

/// "etcd://host:2379,other:2379/job".
absl::StatusOr<RendezvousUrl> parse_etcd_rendezvous(std::string_view text);

}  // namespace gradrail::launch
