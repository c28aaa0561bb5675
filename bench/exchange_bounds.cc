#include <cstring>
#include <vector>

#include "bench/exchange_contenders.h"
#include "ps/optimizer.h"

namespace gradrail::bench {
namespace {

constexpr ps::OptimizerConfig kSgd{.kind = ps::OptimizerKind::sgd, .learning_rate = 1.0f};

Sample run_memcpy(uint64_t bytes, double seconds) {
  std::vector<char> source(bytes, 1), target(bytes, 2);
  return measure(
      seconds, [] {},
      [&] {
        std::memcpy(target.data(), source.data(), bytes);
        asm volatile("" : : "r"(target.data()) : "memory");  // or the copy is optimised away
      });
}

Sample run_apply(uint64_t bytes, double seconds) {
  const size_t count = bytes / sizeof(float);
  std::vector<float> parameters(count, 0.0f), gradient(count, 1.0f), worker(count, 0.0f);
  uint64_t updates = 0;
  Sample sample = measure(
      seconds, [] {},
      [&] {
        const float* gradients[] = {gradient.data()};
        float* targets[] = {worker.data()};
        ps::apply(kSgd, {.count = count,
                         .parameters = parameters.data(),
                         .gradients = gradients,
                         .targets = targets,
                         .update_index = ++updates});
      });
  for (const float value : worker) sample.wrong += value != -static_cast<float>(updates) ? 1 : 0;
  return sample;
}

}  // namespace

std::vector<Contender> bounds(const ExchangeOptions&) {
  return {{"bound: memcpy", run_memcpy}, {"bound: one fused apply", run_apply}};
}

}  // namespace gradrail::bench
