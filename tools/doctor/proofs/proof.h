#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/doctor/facts/facts.h"

namespace gradrail::tools::doctor {

/// Bytes that were moved and compared, or why not.
struct Proof {
  std::string transport;  ///< "ucx"
  std::string device;     ///< "mlx5_0 port 1 (10.0.0.1)", "this host", "127.0.0.1"
  std::string memory;     ///< "host memory", "memory of GPU 0000:19:00.0 by dmabuf"
  bool gpu = false;
  bool moved = false;
  bool rdma = false;    ///< an RDMA device carried them
  std::string path;     ///< path of a successful proof, named by the transport
  double millis = 0;    ///< time from opening to comparing
  std::string why_not;  ///< reason of a failed proof
};

/// Proves each transport that is built: a put of a pattern both ways between two processes, compared. RDMA runs over
/// each address of a working RDMA port, sockets and memory on this host. Each proof runs in a separate process.
/// `tell` is called with the name of the next proof: eight GPUs and eight cards take minutes.
std::vector<Proof> prove_all(const Machine& machine, const std::function<void(const std::string&)>& tell);

}  // namespace gradrail::tools::doctor
