#include "tests/transport/loopback/doorbell.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

#include "base/check.h"

namespace gradrail::transport::loopback {

Doorbell::Doorbell() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) { GRADRAIL_CHECK(fd_ >= 0); }

Doorbell::~Doorbell() { close(fd_); }

void Doorbell::ring() {
  // Only the first ring after arm() writes: the owner needs one wake-up.
  if (!armed_.exchange(false)) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(fd_, &one, sizeof(one));  // full counter: already readable
}

void Doorbell::arm() {
  uint64_t count = 0;
  // The read precedes the store: a ring after the store must stay in the descriptor.
  [[maybe_unused]] const ssize_t drained = read(fd_, &count, sizeof(count));  // empty is the usual case
  armed_.store(true);
}

}  // namespace gradrail::transport::loopback
