#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"

namespace gradrail::transport::common {

using MessageBuffer = std::unique_ptr<std::byte[]>;

/// Buffers of one size for small messages. It keeps up to `max_spare` of them for reuse.
class MessageBuffers {
 public:
  MessageBuffers(size_t buffer_bytes, size_t max_spare) : buffer_bytes_(buffer_bytes), max_spare_(max_spare) {}

  MessageBuffer take() {
    if (spare_.empty()) return std::make_unique_for_overwrite<std::byte[]>(buffer_bytes_);
    MessageBuffer buffer = std::move(spare_.back());
    spare_.pop_back();
    return buffer;
  }
  void give_back(MessageBuffer buffer) {
    GRADRAIL_CHECK(buffer != nullptr);  // take() would return it
    if (spare_.size() < max_spare_) spare_.push_back(std::move(buffer));
  }

 private:
  const size_t buffer_bytes_;
  const size_t max_spare_;
  std::vector<MessageBuffer> spare_;
};

}  // namespace gradrail::transport::common
