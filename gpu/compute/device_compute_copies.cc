#include <utility>

#include "fmt/format.h"
#include "gpu/compute/device_compute.h"
#include "gpu/compute/device_memory.h"
#include "gpu/driver/native_error.h"

namespace gradrail::gpu {

CopyTicket DeviceCompute::download(void* to, const void* from, size_t bytes) {
  if (begin()) wait_if_pageable(to, bytes);
  // The number is counted in any case: the caller gets a new ticket even after an error.
  const CopyTicket ticket = ++last_ticket_;
  // The check is repeated, because that wait may have found the device lost. A ticket without a mark counts as done.
  if (!begin()) return ticket;
  // All downloads share one event: a later record() does not change a wait that is already enqueued.
  const bool behind = check(compute_.record(behind_), "marking the work so far") &&
                      check(copies_.wait_for(behind_), "waiting for the work so far");
  if (!behind) return ticket;
  // A copy of no bytes is the mark alone. wait_if_pageable() and finish() use it as a wait for all earlier work.
  if (bytes > 0) {
    const cuda::Result copied =
        context_->api().cuMemcpyAsync(address_of(to), address_of(from), bytes, copies_.handle());
    if (copied != cuda::kSuccess) fail(copied, fmt::format("copying {} bytes from it", bytes));
  }
  if (error_.ok()) check(marks_.mark(copies_, ticket), "marking a copy");
  return ticket;
}

/// The driver would wait in its copy, where no deadline of ours ends it: here one does.
bool DeviceCompute::wait_if_pageable(const void* host, size_t bytes) {
  if (!is_pageable(*context_, host, bytes)) return true;
  wait_in_turns(download(nullptr, nullptr, 0));
  return begin();
}

void DeviceCompute::collect_copies() {
  if (error_lasts_) return;
  const cuda::Result result = marks_.collect();
  // CUDA reports an error of earlier asynchronous work through the next call (CUDA C++ Guide, 3.2.11).
  if (result != cuda::kNotReady) check(result, "work that was enqueued");
  if (marks_.is_overdue()) {
    const double seconds = std::chrono::duration<double>(options_.answer_timeout).count();
    error_ = device_loss(
        fmt::format("{}: no answer for {:.1f} s: the device is lost, or another process occupies it (see nvidia-smi)",
                    name(), seconds));
    // A failed device returns its error immediately. A device without an answer may block a call that frees its
    // resources.
    context_->abandon();
    give_up();
  }
}

bool DeviceCompute::is_done(CopyTicket ticket) {
  collect_copies();
  return marks_.is_reached(ticket);
}

void DeviceCompute::wait_in_turns(CopyTicket ticket) {
  // The loop ends in any case: give_up() makes each ticket count as reached.
  for (WaitInTurns wait; !is_done(ticket);) wait.turn();
}

absl::Status DeviceCompute::wait(CopyTicket ticket) {
  wait_in_turns(ticket);
  return take_error();
}

absl::Status DeviceCompute::finish() {
  if (error_lasts_) return error_;
  // Nothing new is enqueued after an error, but earlier work may still use memory that the caller needs.
  const absl::Status error = std::exchange(error_, absl::OkStatus());
  wait_in_turns(download(nullptr, nullptr, 0));
  if (error_.ok()) error_ = error;
  return take_error();
}

}  // namespace gradrail::gpu
