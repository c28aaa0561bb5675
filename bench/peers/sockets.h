#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <string>

namespace gradrail::bench {

/// Sends all bytes. Both functions return false if the connection ends before.
bool send_all(int fd, const void* data, size_t bytes);
bool receive_all(int fd, void* data, size_t bytes);

/// Makes a connection over the loopback address to a separate process. `serve(fd)` runs in that process, which ends
/// then. The caller ends `child` (bench/driver/children.h). Returns -1 and sets `failed` if there is no connection.
int connect_to_child(const std::function<void(int fd)>& serve, pid_t& child, std::string& failed);

}  // namespace gradrail::bench
