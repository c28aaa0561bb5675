#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <vector>

#include "base/parse_number.h"
#include "bench/driver/harness.h"
#include "bench/peers/peers.h"
#include "nlohmann/json.hpp"
#include "ps/optimizer/optimizer.h"

namespace gradrail::bench {
namespace {

// Rate 1 and gradients of 1 make the expected result a whole number: count_wrong().
constexpr OptimizerConfig kSgd{.kind = OptimizerKind::sgd, .learning_rate = 1.0f};

Figure run_memcpy(const PeerLoad& load) {
  // Written before the measurement, so that no page fault is timed.
  std::vector<char> source(load.bytes, 1), target(load.bytes, 2);
  Figure figure;
  figure.times = measure(
      load.seconds, [] {},
      [&] {
        std::memcpy(target.data(), source.data(), load.bytes);
        asm volatile("" : : "r"(target.data()) : "memory");  // otherwise the copy is optimized away
      });
  return figure;
}

Figure run_apply(const PeerLoad& load) {
  const size_t count = load.bytes / sizeof(float);
  std::vector<float> parameters(count, 0.0f), gradient(count, 1.0f), worker(count, 0.0f);
  uint64_t updates = 0;
  Figure figure;
  figure.times = measure(
      load.seconds, [] {},
      [&] {
        // The load is one gradient and one target: the work of a shard for one worker over shm.
        const float* gradients[] = {gradient.data()};
        float* targets[] = {worker.data()};
        ps::apply(kSgd, {.count = count,
                         .parameters = parameters.data(),
                         .gradients = gradients,
                         .targets = targets,
                         .update_index = ++updates});
      });
  figure.wrong = count_wrong(worker.data(), count, updates);
  return figure;
}

}  // namespace

const char* const kApplyBound = "bound: one fused apply";

uint64_t count_wrong(const float* parameters, size_t count, uint64_t updates) {
  // Gradients and learning rate are 1: each update subtracts exactly 1. From -2^24 on fp32 rounds the result back to
  // -2^24, so that further updates do not change it.
  constexpr uint64_t kLargestExact = uint64_t{1} << std::numeric_limits<float>::digits;
  const float expected = -static_cast<float>(std::min(updates, kLargestExact));
  uint64_t wrong = 0;
  for (size_t i = 0; i < count; ++i) wrong += parameters[i] != expected ? 1 : 0;
  return wrong;
}

void apply_sgd(float* parameters, const float* gradient, size_t count, uint64_t update_index) {
  const float* gradients[] = {gradient};
  ps::apply(
      kSgd,
      {.count = count, .parameters = parameters, .gradients = gradients, .targets = {}, .update_index = update_index});
}

Figure measure_exchanges(const PeerLoad& load,
                         const std::function<bool(const float* gradient, float* parameters)>& exchange) {
  const size_t count = load.bytes / sizeof(float);
  std::vector<float> gradient(count, 1.0f), parameters(count, 0.0f);
  bool good = true;
  uint64_t exchanges = 0;
  Figure figure;
  figure.times = measure(
      load.seconds,
      [&] {
        if (load.touch) std::fill(gradient.begin(), gradient.end(), 1.0f);
      },
      [&] {
        good = good && exchange(gradient.data(), parameters.data());
        ++exchanges;
      });
  if (!good) figure.failed = "connection broke";
  figure.wrong = count_wrong(parameters.data(), count, exchanges);
  return figure;
}

std::optional<PeerLoad> peer_load_from(int count, char** values) {
  if (count < 4) return std::nullopt;
  const uint64_t bytes = parse_size(values[1]);
  const auto seconds = parse_number<double>(values[2]);
  const auto touch = parse_number<int>(values[3]);
  if (bytes == 0 || !seconds || !touch) return std::nullopt;
  return PeerLoad{.bytes = bytes, .seconds = *seconds, .touch = *touch != 0};
}

int run_peer_program(int count, char** values,
                     const std::function<Figure(const PeerLoad&, const std::string& word)>& run) {
  const std::optional<PeerLoad> load = peer_load_from(count, values);
  // The exit code of wrong usage.
  if (!load) return 2;
  const Figure figure = run(*load, count > 4 ? values[4] : "");
  std::printf("%s\n", to_json(figure).dump().c_str());
  return 0;
}

std::vector<Peer> bounds() { return {{"bound: memcpy", run_memcpy}, {kApplyBound, run_apply}}; }

}  // namespace gradrail::bench
