#include <thread>

#include "fmt/format.h"
#include "gpu/device_compute.h"
#include "gpu/device_memory.h"

namespace gradrail::gpu {
namespace {

/// Of the host's waits: a copy of a tensor mostly ends within the first turns, and then other threads want the core.
constexpr int kBusyTurns = 200;
constexpr auto kSleep = std::chrono::microseconds(20);

}  // namespace

CopyTicket DeviceCompute::download(void* to, const void* from, size_t bytes) {
  const CopyTicket ticket = ++last_ticket_;
  if (!begin()) return ticket;
  const bool behind = check(compute_.record(behind_), "marking the work so far") &&
                      check(copies_.wait_for(behind_), "waiting for the work so far");
  if (!behind) return ticket;
  if (bytes == 0 || check(context_->api().cuMemcpyAsync(address_of(to), address_of(from), bytes, copies_.handle()),
                          fmt::format("copying {} bytes from it", bytes))) {
    mark(ticket);
  }
  return ticket;
}

/// Leaves a mark behind the last copy, by which its end is noticed.
bool DeviceCompute::mark(CopyTicket ticket) {
  Event event;
  if (spare_events_.empty()) {
    absl::StatusOr<Event> made = Event::create(context_);
    if (!made.ok()) {
      fail(made.status());
      return false;
    }
    event = *std::move(made);
  } else {
    event = std::move(spare_events_.back());
    spare_events_.pop_back();
  }
  if (!check(copies_.record(event), "marking a copy")) return false;
  if (under_way_.empty()) last_answer_ = Clock::now();
  under_way_.push_back({ticket, std::move(event)});
  return true;
}

void DeviceCompute::collect_copies() {
  while (!under_way_.empty() && !error_lasts_) {
    const cuda::Result result = under_way_.front().event.query();
    if (result == cuda::kNotReady) break;
    last_answer_ = Clock::now();
    check(result, "work that was enqueued");
    done_ticket_ = under_way_.front().ticket;
    spare_events_.push_back(std::move(under_way_.front().event));
    under_way_.pop_front();
  }
  if (!under_way_.empty() && !error_lasts_ && Clock::now() - last_answer_ > options_.answer_timeout) {
    const auto seconds = std::chrono::duration<double>(options_.answer_timeout).count();
    error_ = absl::UnavailableError(fmt::format(
        "{}: no answer for {:.1f} s: it is lost, or somebody else's work keeps it busy (nvidia-smi)", name(), seconds));
    error_lasts_ = true;
  }
  // The events of a device that is lost would never be reached; freeing them, or anything, may block for ever.
  if (error_lasts_) {
    context_->abandon();
    under_way_.clear();
  }
}

bool DeviceCompute::is_done(CopyTicket ticket) {
  collect_copies();
  return ticket <= done_ticket_ || under_way_.empty() || ticket < under_way_.front().ticket;
}

void DeviceCompute::wait_in_turns(CopyTicket ticket) {
  for (int turn = 0; !is_done(ticket); ++turn) {
    if (turn < kBusyTurns) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kSleep);
    }
  }
}

absl::Status DeviceCompute::wait(CopyTicket ticket) {
  wait_in_turns(ticket);
  return take_error();
}

absl::Status DeviceCompute::finish() {
  // After an error nothing new is enqueued, but what was may still be using memory that the caller wants back.
  absl::Status error = std::exchange(error_, absl::OkStatus());
  if (error_lasts_) {
    error_ = error;
    return error_;
  }
  wait_in_turns(download(nullptr, nullptr, 0));
  if (!error.ok() && error_.ok()) error_ = error;
  return take_error();
}

}  // namespace gradrail::gpu
