#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <vector>

#include "base/status.h"
#include "bench/driver/children.h"
#include "bench/driver/harness.h"
#include "bench/driver/program.h"
#include "bench/peers/peers.h"
#include "bench/peers/sockets.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "topology/pin.h"

namespace gradrail::bench {
namespace {

/// Receives gradients, applies SGD, sends parameters back, until the worker closes.
void serve_socket(int fd, size_t count) {
  std::vector<float> parameters(count, 0.0f), gradient(count);
  uint64_t updates = 0;
  while (receive_all(fd, gradient.data(), count * sizeof(float))) {
    apply_sgd(parameters.data(), gradient.data(), count, ++updates);
    if (!send_all(fd, parameters.data(), count * sizeof(float))) break;
  }
}

Figure run_socket(const PeerLoad& load) {
  Figure figure;
  const size_t count = load.bytes / sizeof(float);
  pid_t server = 0;
  const int fd = connect_to_child([count](int child) { serve_socket(child, count); }, server, figure.failed);
  if (fd < 0) return figure;
  figure = measure_exchanges(load, [&](const float* gradient, float* parameters) {
    return send_all(fd, gradient, load.bytes) && receive_all(fd, parameters, load.bytes);
  });
  close(fd);
  end_child(server);
  return figure;
}

/// Receives all bytes like receive_all(), but without a wake-up: it polls until they have arrived.
bool spin_for_all(int fd, void* data, size_t bytes) {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t count = recv(fd, at, bytes, MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (count <= 0) return false;
    at += count;
    bytes -= static_cast<size_t>(count);
  }
  return true;
}

Figure run_round_trip(const PeerLoad& load) {
  Figure figure;
  std::vector<char> bytes(load.bytes, 1);
  // Two processes that spin on one core wait for each other's time slice.
  const auto receive = topology::usable_cpus().count() > 1 ? spin_for_all : receive_all;
  const auto echo = [&](int child) {
    while (receive(child, bytes.data(), bytes.size()) && send_all(child, bytes.data(), bytes.size())) {
    }
  };
  pid_t server = 0;
  const int fd = connect_to_child(echo, server, figure.failed);
  if (fd < 0) return figure;
  bool good = true;
  figure.times = measure(
      load.seconds, [] {},
      [&] { good = good && send_all(fd, bytes.data(), bytes.size()) && receive(fd, bytes.data(), bytes.size()); });
  if (!good) figure.failed = "connection broke";
  close(fd);
  end_child(server);
  return figure;
}

/// Returns a peer that is a separate program; its last line is a Figure.
Peer program(const std::string& name, const std::string& file, const std::vector<std::string>& before,
             const std::string& word, const std::string& remedy) {
  return {name, [=](const PeerLoad& load) {
            const std::string path = fmt::format("{}/{}", peers_folder(), file);
            // A missing library at build time is the usual reason; the row states the remedy.
            if (access(path.c_str(), X_OK) != 0)
              return not_measured("", load.bytes, fmt::format("{} was not built ({})", file, remedy));
            std::vector<std::string> words = before;
            for (const std::string& each : {path, std::to_string(load.bytes), fmt::format("{}", load.seconds),
                                            std::string(load.touch ? "1" : "0"), word})
              words.push_back(each);
            const absl::StatusOr<std::string> output = run_program(words);
            if (!output.ok()) return not_measured("", load.bytes, std::string(message_of(output.status())));
            const nlohmann::json parsed = nlohmann::json::parse(last_line(*output), nullptr, false);
            if (!parsed.is_discarded()) return figure_from(parsed);
            return not_measured("", load.bytes, file + " ended without a figure");
          }};
}

/// Components that Open MPI may use, by name. Any other would be another peer, such as one-sided puts through shared
/// memory where tcp was named. Its ranks end immediately, not after a second, when this process ends.
std::vector<std::string> mpirun(const std::string& btl, const std::string& osc) {
  return {"env",
          "OMPI_ALLOW_RUN_AS_ROOT=1",
          "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
          "mpirun",
          "-n",
          "2",
          "--oversubscribe",
          "--bind-to",
          "none",
          "--mca",
          "pml",
          "ob1",
          "--mca",
          "odls_base_sigkill_timeout",
          "0",
          "--mca",
          "btl",
          "self," + btl,
          "--mca",
          "osc",
          osc};
}

}  // namespace

Peer round_trip_bound() { return {"bound: tcp round trip", run_round_trip}; }

std::vector<Peer> peers() {
  constexpr const char* kZeroMq = "apt install libzmq3-dev, then build again";
  constexpr const char* kGloo = "apt install libgloo-dev, then build again";
  constexpr const char* kMpi = "apt install libopenmpi-dev openmpi-bin, then build again";
  std::vector<Peer> list = {{"raw socket", run_socket},
                            program("ZeroMQ tcp", "zeromq_exchange", {}, "tcp", kZeroMq),
                            program("ZeroMQ ipc", "zeromq_exchange", {}, "ipc", kZeroMq),
                            program("Gloo allreduce tcp", "gloo_exchange", {}, "", kGloo)};
  for (const auto& [way, name] :
       {std::pair{"send", "Open MPI"}, {"put", "Open MPI put"}, {"allreduce", "Open MPI allreduce"}}) {
    list.push_back(program(fmt::format("{} shared memory", name), "mpi_exchange", mpirun("vader", "sm"), way, kMpi));
    list.push_back(program(fmt::format("{} tcp", name), "mpi_exchange", mpirun("tcp", "pt2pt"), way, kMpi));
  }
  return list;
}

}  // namespace gradrail::bench
