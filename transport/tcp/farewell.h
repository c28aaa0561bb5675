#pragma once

#include <string>

#include "base/clock.h"
#include "transport/tcp/event_source.h"
#include "transport/tcp/socket.h"

namespace gradrail::transport::tcp {

/// A socket on its way out: sends its last words, then reads and drops what still comes, so that the kernel does not
/// answer the peer's late bytes with a reset that overtakes the last words.
class Farewell final : public EventSource {
 public:
  Farewell(Fd fd, std::string last_words, TimePoint deadline)
      : EventSource(Kind::farewell), fd_(std::move(fd)), last_words_(std::move(last_words)), deadline_(deadline) {}

  /// False when there is nothing left to do.
  bool progress();
  int fd() const { return fd_.get(); }
  bool writing() const { return !shut_; }
  TimePoint deadline() const { return deadline_; }

 private:
  bool write_rest();
  bool drop_incoming();

  Fd fd_;
  std::string last_words_;
  TimePoint deadline_;
  bool shut_ = false;
};

}  // namespace gradrail::transport::tcp
