#pragma once

#include <vector>

#include "ps/optimizer/isa.h"
#include "ps/optimizer/optimizer.h"

namespace gradrail::ps {

/// One update of buffers with fixed values. Returns parameters, both state vectors and a target, one behind the other.
inline std::vector<float> updated(Isa isa, OptimizerKind kind, PushFormat format, size_t count,
                                  absl::Span<const float* const> gradients) {
  std::vector<float> p(count, 0.5f), m(count, 0.25f), v(count, 0.125f), target(count);
  float* const targets[] = {target.data()};
  apply_with(isa, {.kind = kind},
             {.count = count,
              .parameters = p.data(),
              .state = {m.data(), v.data()},
              .gradients = gradients,
              .format = format,
              .targets = targets});
  for (const auto& more : {m, v, target}) p.insert(p.end(), more.begin(), more.end());
  return p;
}

}  // namespace gradrail::ps
