#pragma once

#include <string>

#include "base/file_descriptor.h"
#include "gradrail/clock.h"
#include "transport/tcp/event_source.h"
#include "transport/tcp/socket.h"

namespace gradrail::transport::tcp {

/// A socket that is closing. It sends its final bytes, then reads and drops further input. Without this the kernel
/// answers late bytes of the peer with a reset that overtakes the final bytes.
class LingeringClose final : public EventSource {
 public:
  LingeringClose(FileDescriptor fd, std::string final_bytes, TimePoint deadline)
      : EventSource(Kind::lingering_close),
        fd_(std::move(fd)),
        final_bytes_(std::move(final_bytes)),
        deadline_(deadline) {}

  /// False when there is nothing left to do.
  bool progress();
  int fd() const { return fd_.get(); }
  bool writing() const { return !shut_; }
  TimePoint deadline() const { return deadline_; }

 private:
  bool write_rest();
  bool drop_incoming();

  FileDescriptor fd_;
  std::string final_bytes_;
  TimePoint deadline_;
  bool shut_ = false;
};

}  // namespace gradrail::transport::tcp
