#pragma once

#include <algorithm>

#include "ps/shard/shard_protocol.h"

namespace gradrail::ps {

/// Whether the actions of on_arrival() are those of a lone push.
inline bool are_of_lone_push(const Actions& actions, const Arrival& push, const ShardProtocol::LonePush& lone) {
  return actions.size() == 2 && actions[0].kind == Action::Kind::apply && actions[1].kind == Action::Kind::answer &&
         actions[0].contributors.size() == 1 && actions[0].contributors[0] == push.worker &&
         std::all_of(actions.begin(), actions.end(), [&](const Action& action) {
           return action.bucket == push.bucket && action.worker == push.worker && action.step == push.step &&
                  action.version == lone.version && action.staleness == lone.staleness && !action.dropped &&
                  action.next_step == 0;
         });
}

}  // namespace gradrail::ps
