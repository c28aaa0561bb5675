#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "gradrail/clock.h"
#include "launch/etcd/etcd.h"
#include "launch/launcher/rendezvous_url.h"

namespace gradrail::launch {

/// Where the ps tasks of a job are, as their registrations state it.
/// Threads  One at a time.
class PsLookup {
 public:
  /// Errors  FAILED_PRECONDITION: a file of the certificates.
  static absl::StatusOr<std::unique_ptr<PsLookup>> open(const RendezvousUrl& where, uint32_t ps_count);

  /// The address of a ps below ps_count; its last known one while etcd does not answer.
  /// Errors  NOT_FOUND: it is not registered, or does not listen yet. UNAVAILABLE: etcd does not answer, and never has.
  absl::StatusOr<std::string> address(uint32_t index);

 private:
  PsLookup(RendezvousUrl where, uint32_t ps_count, std::unique_ptr<Etcd> etcd)
      : where_(std::move(where)), etcd_(std::move(etcd)), known_(ps_count) {}

  struct Known {
    absl::StatusOr<std::string> answer = absl::UnavailableError("");
    std::string last;
    TimePoint asked;
  };
  absl::StatusOr<std::string> ask(uint32_t index);

  const RendezvousUrl where_;
  const std::unique_ptr<Etcd> etcd_;
  std::vector<Known> known_;
};

/// The addresses of all ps tasks of a job, by task index, for processes outside the job.
/// Errors  NOT_FOUND: a ps is not registered; names it. As Etcd.
absl::StatusOr<std::vector<std::string>> find_ps(const RendezvousUrl& where);

}  // namespace gradrail::launch
