#include "worker/client/session/identity.h"

#include "base/random_bits.h"
#include "ps/protocol/control.pb.h"

namespace gradrail::worker {

void Identity::renew() {
  incarnation_ = random_bits() | 1;  // never 0, which means no member in the tables of a shard
}

ps::proto::Member Identity::member() const {
  ps::proto::Member member;
  member.set_task_index(task_index_);
  member.set_incarnation(incarnation_);
  return member;
}

}  // namespace gradrail::worker
