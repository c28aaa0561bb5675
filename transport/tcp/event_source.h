#pragma once

#include <cstdint>

namespace gradrail::transport::tcp {

/// Target of an epoll event.
class EventSource {
 public:
  enum class Kind : uint8_t { listener, timer, connection, lingering_close };
  explicit EventSource(Kind kind) : kind_(kind) {}
  Kind kind() const { return kind_; }

 private:
  Kind kind_;
};

}  // namespace gradrail::transport::tcp
