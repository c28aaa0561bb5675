// The exchange of classic parameter servers: zeromq_exchange BYTES SECONDS TOUCH tcp|ipc. A request
// carries the gradient, a reply carries the parameters.
#include <unistd.h>
#include <zmq.h>

#include <cstring>

#include "base/file_descriptor.h"
#include "base/status.h"
#include "bench/driver/children.h"
#include "bench/peers/peers.h"
#include "fmt/format.h"

namespace gradrail::bench {
namespace {

/// A context with one socket; ends quickly, whatever is still on its way.
class Socket {
 public:
  Socket(int kind, uint64_t bytes) : context_(zmq_ctx_new()), socket_(zmq_socket(context_, kind)) {
    const int none = 0;
    // zmq_ctx_term() waits forever by default for messages that no process receives any more.
    zmq_setsockopt(socket_, ZMQ_LINGER, &none, sizeof(none));
    // A server that ended in an error sends nothing.
    const int timeout_ms = static_cast<int>(exchange_limit(bytes) / std::chrono::milliseconds(1));
    zmq_setsockopt(socket_, ZMQ_RCVTIMEO, &timeout_ms, sizeof(timeout_ms));
  }
  ~Socket() {
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  void* get() { return socket_; }

 private:
  void* context_;
  void* socket_;
};

[[noreturn]] void serve(int port_fd, const std::string& where, size_t count) {
  {
    Socket socket(ZMQ_REP, count * sizeof(float));
    char endpoint[256] = "";
    size_t length = sizeof(endpoint);
    const bool bound = zmq_bind(socket.get(), where.c_str()) == 0 &&
                       zmq_getsockopt(socket.get(), ZMQ_LAST_ENDPOINT, endpoint, &length) == 0;
    // The address after bind(): with port * the kernel has chosen one.
    if (!bound || write(port_fd, endpoint, sizeof(endpoint)) != sizeof(endpoint)) _exit(1);
    std::vector<float> parameters(count, 0.0f), gradient(count);
    const size_t bytes = count * sizeof(float);
    uint64_t updates = 0;
    while (zmq_recv(socket.get(), gradient.data(), bytes, 0) == static_cast<int>(bytes)) {
      apply_sgd(parameters.data(), gradient.data(), count, ++updates);
      if (zmq_send(socket.get(), parameters.data(), bytes, 0) < 0) break;
    }
  }
  _exit(0);
}

Figure run(const std::string& where, const PeerLoad& load) {
  absl::StatusOr<Pipe> pipe = open_pipe();
  if (!pipe.ok()) return not_measured("", load.bytes, std::string(message_of(pipe.status())));
  // The fork precedes the first context: threads of ZeroMQ would not be copied into the child.
  if (fork_child() == 0) serve(pipe->writer.get(), where, load.bytes / sizeof(float));
  pipe->writer.reset();
  char endpoint[256] = "";
  if (read(pipe->reader.get(), endpoint, sizeof(endpoint)) != sizeof(endpoint))
    return not_measured("", load.bytes, "the server did not start");
  Socket socket(ZMQ_REQ, load.bytes);
  if (zmq_connect(socket.get(), endpoint) != 0) return not_measured("", load.bytes, zmq_strerror(zmq_errno()));
  return measure_exchanges(load, [&](const float* gradient, float* parameters) {
    const auto bytes = static_cast<int>(load.bytes);
    return zmq_send(socket.get(), gradient, load.bytes, 0) == bytes &&
           zmq_recv(socket.get(), parameters, load.bytes, 0) == bytes;
  });
}

}  // namespace

Figure run_over(const PeerLoad& load, const std::string& transport) {
  if (transport == "tcp") return run("tcp://127.0.0.1:*", load);
  // The name is not that of a file: no file remains.
  return run(fmt::format("ipc://@gradrail-bench-{}", getpid()), load);
}

}  // namespace gradrail::bench

int main(int count, char** values) {
  return gradrail::bench::run_peer_program(count, values, gradrail::bench::run_over);
}
