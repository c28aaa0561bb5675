#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace gradrail::transport {

class Connection;

/// An event of a Context.
struct Completion {
  enum class Kind : uint8_t {
    connected,    ///< a peer connected to our listener; `connection` is new and usable. tcp: `tag` counts the calls of
                  ///< Context::listen before that of the listener
    put_done,     ///< the put with this tag no longer needs its local memory (not: has arrived)
    get_done,     ///< the get with this tag has filled its local memory
    put_arrived,  ///< a put with this immediate, and every earlier put of its connection, is visible here.
                  ///< In GPU memory it is visible after a flush, if the GPU needs one (gpu/direct/dma_buf.h)
    message,      ///< a small message; `message` is valid until the next poll of this Context
    peer_lost,    ///< last event of `connection`; `cause` has the reason. Valid until Context::close
  };
  Kind kind = Kind::connected;
  Connection* connection = nullptr;
  uint64_t tag = 0;
  uint64_t immediate = 0;
  uint32_t lane = 0;  ///< put_arrived: that of the put, below Connection::lanes()
  absl::Span<const std::byte> message;
  absl::Status cause;
  bool altered = false;  ///< peer_lost: encrypted data was altered on its way; a new connection is no remedy
};

}  // namespace gradrail::transport
