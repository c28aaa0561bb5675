#include "transport/tcp/lingering_close.h"

#include <cerrno>

namespace gradrail::transport::tcp {

bool LingeringClose::progress() {
  if (!shut_ && !write_rest()) return false;
  return drop_incoming();
}

bool LingeringClose::write_rest() {
  while (!final_bytes_.empty()) {
    const ssize_t sent = send(fd_.get(), final_bytes_.data(), final_bytes_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    final_bytes_.erase(0, static_cast<size_t>(sent));
  }
  // The end of the stream behind the final bytes makes the peer close; drop_incoming() waits for that close.
  shut_ = true;
  return shutdown(fd_.get(), SHUT_WR) == 0;
}

bool LingeringClose::drop_incoming() {
  char nowhere[16 * 1024];  // MSG_TRUNC: TCP drops the bytes without copying them here
  constexpr int kReadsPerTurn = 32;
  // The limit is 512 KiB, as for a connection in one poll: a peer that never stops sending must not hold the poll.
  for (int i = 0; i < kReadsPerTurn; ++i) {
    const ssize_t got = recv(fd_.get(), nowhere, sizeof(nowhere), MSG_TRUNC | MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
  }
  return true;
}

}  // namespace gradrail::transport::tcp
