#include "bench/peers/sockets.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/file_descriptor.h"
#include "bench/driver/children.h"

namespace gradrail::bench {

bool send_all(int fd, const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    // MSG_NOSIGNAL: a closed connection is a row with a reason, not the end of the process.
    const ssize_t sent = send(fd, at, bytes, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += sent;
    bytes -= static_cast<size_t>(sent);
  }
  return true;
}

bool receive_all(int fd, void* data, size_t bytes) {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    // The loop is necessary: a signal makes MSG_WAITALL return less.
    const ssize_t count = recv(fd, at, bytes, MSG_WAITALL);
    if (count <= 0) return false;
    at += count;
    bytes -= static_cast<size_t>(count);
  }
  return true;
}

int connect_to_child(const std::function<void(int fd)>& serve, pid_t& child, std::string& failed) {
  const auto send_at_once = [](int fd) {
    const int on = 1;
    // Otherwise the last segment of an exchange could wait for an acknowledgement.
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    return fd;
  };
  // Port 0: the kernel has a free one, and getsockname() returns it.
  const FileDescriptor listener(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  socklen_t length = sizeof(address);
  if (bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(listener.get(), 1) != 0 ||
      getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    failed = "cannot listen on the loopback address";
    return -1;
  }
  // The socket listens already, so connect() cannot be too early.
  child = fork_child();
  if (child == 0) {
    serve(send_at_once(accept(listener.get(), nullptr, nullptr)));
    _exit(0);
  }
  FileDescriptor fd(socket(AF_INET, SOCK_STREAM, 0));
  if (child > 0 && connect(fd.get(), reinterpret_cast<sockaddr*>(&address), length) == 0)
    return send_at_once(fd.release());
  failed = child > 0 ? "connect" : "fork";
  if (child > 0) end_child(child);  // it waits for a connection
  return -1;
}

}  // namespace gradrail::bench
