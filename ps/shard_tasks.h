#pragma once

#include <chrono>
#include <future>
#include <memory>
#include <utility>

#include "fmt/format.h"
#include "ps/shard.h"

// How the sources of Shard hand tasks to its thread; nobody else includes this.

namespace gradrail::ps {

/// How long a shard may take to answer the control plane: it is never busy longer than one bucket's work, so that only
/// a dead thread or a stopped process exceeds this.
inline constexpr auto kTaskDeadline = std::chrono::seconds(30);

template <typename F>
auto Shard::on_owner(F task) -> absl::StatusOr<decltype(task())> {
  auto promise = std::make_shared<std::promise<decltype(task())>>();  // shared: the task may outlive our patience
  std::future<decltype(task())> result = promise->get_future();
  {
    std::lock_guard lock(tasks_mutex_);
    if (stopping_) return absl::UnavailableError(fmt::format("{} is stopping", options_.name));
    tasks_.push_back([promise, task = std::move(task)] { promise->set_value(task()); });
    tasks_waiting_.store(true, std::memory_order_release);
  }
  wait_set_.wake();
  if (result.wait_for(kTaskDeadline) != std::future_status::ready) {
    return absl::DeadlineExceededError(fmt::format("{} does not answer", options_.name));
  }
  return result.get();
}

}  // namespace gradrail::ps
