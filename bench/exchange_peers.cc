#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <vector>

#include "bench/exchange_contenders.h"
#include "fmt/format.h"
#include "ps/optimizer.h"

namespace gradrail::bench {
namespace {

bool send_all(int fd, const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
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
    const ssize_t count = recv(fd, at, bytes, MSG_WAITALL);
    if (count <= 0) return false;
    at += count;
    bytes -= static_cast<size_t>(count);
  }
  return true;
}

/// Receives gradients, applies SGD, sends parameters back, until the worker closes.
[[noreturn]] void serve_socket(int listener, size_t count) {
  const int fd = accept(listener, nullptr, nullptr);
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  std::vector<float> parameters(count, 0.0f), gradient(count);
  const float* gradients[] = {gradient.data()};
  uint64_t updates = 0;
  while (receive_all(fd, gradient.data(), count * sizeof(float))) {
    ps::apply({.kind = ps::OptimizerKind::sgd, .learning_rate = 1.0f}, {.count = count,
                                                                        .parameters = parameters.data(),
                                                                        .gradients = gradients,
                                                                        .targets = {},
                                                                        .update_index = ++updates});
    if (!send_all(fd, parameters.data(), count * sizeof(float))) break;
  }
  _exit(0);
}

Sample run_socket(uint64_t bytes, double seconds, bool touch) {
  const size_t count = bytes / sizeof(float);
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  socklen_t length = sizeof(address);
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(listener, 1) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return {.failed = "cannot listen on the loopback address"};
  }
  if (fork() == 0) serve_socket(listener, count);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), length) != 0) return {.failed = "connect"};
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  std::vector<float> gradient(count, 1.0f), parameters(count, 0.0f);
  bool good = true;
  uint64_t exchanges = 0;
  Sample sample = measure(
      seconds,
      [&] {
        if (touch) std::fill(gradient.begin(), gradient.end(), 1.0f);
      },
      [&] {
        good = good && send_all(fd, gradient.data(), bytes) && receive_all(fd, parameters.data(), bytes);
        ++exchanges;
      });
  close(fd);
  if (!good) return {.failed = "connection broke"};
  for (const float value : parameters) sample.wrong += value != -static_cast<float>(exchanges) ? 1 : 0;
  return sample;
}

/// The MPI peer is a program of its own, since mpirun starts its ranks; its last line is a Sample.
Sample run_mpi(const std::string& program, const std::string& btl, uint64_t bytes, double seconds, bool touch) {
  const std::string command = fmt::format(
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun -n 2 --oversubscribe --bind-to none "
      "--mca pml ob1 --mca btl self,{} {} {} {} {} 2>/dev/null",
      btl, program, bytes, seconds, touch ? 1 : 0);
  FILE* output = popen(command.c_str(), "r");
  if (output == nullptr) return {.failed = "mpirun cannot be started"};
  char line[512] = "";
  std::string last;
  while (std::fgets(line, sizeof(line), output) != nullptr) last = line;
  if (pclose(output) != 0 || last.empty()) return {.failed = "mpirun failed"};
  return from_line(last.substr(0, last.find('\n')));
}

}  // namespace

std::vector<Contender> peers(const ExchangeOptions& options, const std::string& mpi_program) {
  const bool touch = options.touch;
  std::vector<Contender> list = {
      {"raw socket", [touch](uint64_t bytes, double seconds) { return run_socket(bytes, seconds, touch); }}};
  if (mpi_program.empty()) return list;
  for (const auto& [name, btl] : {std::pair{"shared memory", "vader"}, std::pair{"tcp", "tcp"}}) {
    list.push_back({fmt::format("Open MPI {}", name), [=, btl = std::string(btl)](uint64_t bytes, double seconds) {
                      return run_mpi(mpi_program, btl, bytes, seconds, touch);
                    }});
  }
  return list;
}

}  // namespace gradrail::bench
