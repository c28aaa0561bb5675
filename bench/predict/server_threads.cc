#include "bench/predict/server_threads.h"

#include <algorithm>

#include "bench/predict/network/network.h"

namespace gradrail::bench::predict {

ServerThreads::ServerThreads(const Costs& costs, uint32_t count, uint32_t per_host)
    : costs_(costs), per_host_(per_host), free_at_(count), memory_free_at_((count + per_host - 1) / per_host) {}

Time ServerThreads::use_memory(uint32_t thread, double bytes) {
  Time& free_at = memory_free_at_[thread / per_host_];
  const Time duration = bytes / costs_.memory_gb_per_s;
  memory_busy_ += duration;
  // In the order of events: a thread that is busy asks later, and must not delay the others of its host until then.
  free_at = std::max(free_at, now_) + duration;
  return free_at;
}

void ServerThreads::begin(uint32_t thread, Time now) {
  now_ = now;
  free_at_[thread] = std::max(free_at_[thread], now);
}

void ServerThreads::receive(uint32_t thread, double bytes, Time now) {
  now_ = now;
  Time& free_at = free_at_[thread];
  const Time work = bytes * costs_.receive_ns_per_byte;
  const Time last_piece = std::min(bytes, kPieceBytes) * costs_.receive_ns_per_byte;
  busy_ += work + costs_.message_us * 1e3;
  // The thread takes bytes while the others arrive, if it has time.
  free_at = std::max(free_at + work, now + last_piece) + costs_.message_us * 1e3;
  // The NIC writes the bytes to memory; TCP copies them once more.
  free_at = std::max(free_at, use_memory(thread, bytes * (costs_.receive_ns_per_byte > 0 ? 3 : 1)));
}

void ServerThreads::work(uint32_t thread, Time duration, double memory_bytes) {
  busy_ += duration;
  free_at_[thread] = std::max(free_at_[thread] + duration, use_memory(thread, memory_bytes));
}

ServerThreads::Sending ServerThreads::send(uint32_t thread, double bytes) {
  const Time begin = free_at_[thread] + costs_.message_us * 1e3;
  const Sending sending{.departs_at = begin + std::min(bytes, kPieceBytes) * costs_.send_ns_per_byte,
                        .end = begin + bytes * costs_.send_ns_per_byte};
  busy_ += sending.end - free_at_[thread];
  use_memory(thread, bytes * (costs_.send_ns_per_byte > 0 ? 3 : 1));
  free_at_[thread] = sending.end;
  return sending;
}

void ServerThreads::begin_measurement(Time now) {
  measured_from_ = now;
  busy_ = memory_busy_ = 0;
}

double ServerThreads::cpu_share(Time now) const {
  return now > measured_from_ && !free_at_.empty()
             ? busy_ / (now - measured_from_) / static_cast<double>(free_at_.size())
             : 0.0;
}

double ServerThreads::memory_share(Time now) const {
  return now > measured_from_ && !memory_free_at_.empty()
             ? memory_busy_ / (now - measured_from_) / static_cast<double>(memory_free_at_.size())
             : 0.0;
}

}  // namespace gradrail::bench::predict
