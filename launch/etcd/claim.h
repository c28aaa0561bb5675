#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "launch/etcd/etcd.h"
#include "launch/etcd/membership.h"

namespace gradrail::launch {

/// A place that was found free and taken in one transaction.
struct Claim {
  ps::TaskId task;
  TaskRecord record;
  int64_t lease = 0;
};

/// As Membership::join().
absl::StatusOr<Claim> claim_place(Etcd& etcd, const MembershipRequest& request);

}  // namespace gradrail::launch
