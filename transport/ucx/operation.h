#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "transport/common/message_buffers.h"
#include "transport/ucx/wire.h"

namespace gradrail::transport::ucx {

class Region;
class Sender;

/// Something handed to UCX to send. UCX reads header and body where they are until it reports the end.
struct Operation {
  Sender* sender = nullptr;
  MessageKind kind = MessageKind::put;
  uint32_t sequence = 0;
  uint64_t tag = 0;
  const Region* region = nullptr;  ///< source of get_data
  HeaderBytes header{};
  common::MessageBuffer body;  ///< body of a message
  Operation* next_free = nullptr;
};

/// A fixed number of operations; none is made or freed while data moves.
class OperationPool {
 public:
  explicit OperationPool(size_t count) : slots_(count) {
    for (Operation& each : slots_) release(&each);
  }
  OperationPool(const OperationPool&) = delete;
  OperationPool& operator=(const OperationPool&) = delete;

  bool empty() const { return free_ == nullptr; }
  /// Takes an operation; the queue must not be empty.
  Operation* take() {
    GRADRAIL_CHECK(free_ != nullptr);
    Operation* const taken = free_;
    free_ = taken->next_free;
    ++in_use_;
    return taken;
  }
  void give_back(Operation* operation) {
    GRADRAIL_CHECK(in_use_ > 0 && operation >= slots_.data() && operation < slots_.data() + slots_.size());
    --in_use_;
    release(operation);
  }
  bool all_back() const { return in_use_ == 0; }
  const std::vector<Operation>& slots() const { return slots_; }

 private:
  void release(Operation* operation) {
    operation->region = nullptr;
    operation->next_free = free_;
    free_ = operation;
  }

  std::vector<Operation> slots_;
  Operation* free_ = nullptr;
  size_t in_use_ = 0;
};

}  // namespace gradrail::transport::ucx
