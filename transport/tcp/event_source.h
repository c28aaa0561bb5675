#pragma once

#include <cstdint>

namespace gradrail::transport::tcp {

/// What an epoll event points at.
class EventSource {
 public:
  enum class Kind : uint8_t { listener, timer, connection, farewell };
  explicit EventSource(Kind kind) : kind_(kind) {}
  Kind kind() const { return kind_; }

 private:
  Kind kind_;
};

}  // namespace gradrail::transport::tcp
