#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "tools/etcd/etcd.h"
#include "tools/etcd/membership.h"

namespace gradrail::tools {

/// A place that was found free and taken in one transaction.
struct Claim {
  ps::TaskId task;
  Card card;
  std::string lease;
};

/// As Membership::join().
absl::StatusOr<Claim> claim_place(Etcd& etcd, const Applicant& applicant);

}  // namespace gradrail::tools
