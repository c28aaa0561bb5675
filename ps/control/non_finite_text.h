#pragma once

#include <string>

#include "ps/protocol/schema.h"
#include "ps/shard/environment.h"

namespace gradrail::ps {

/// "NaN in tensor w, element 3, step 7, of worker 1": for `gradrail top`.
std::string short_text(const NonFinite& first, const Schema& schema);

/// The line of the log. `worker`: its name, as Membership::name_of().
std::string log_text(const NonFinite& first, const std::string& worker, const Schema& schema);

}  // namespace gradrail::ps
