#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>

#include "base/log.h"
#include "base/status.h"
#include "bench/exchange_contenders.h"
#include "fmt/format.h"
#include "ps/server.h"
#include "worker/client.h"

namespace gradrail::bench {
namespace {

constexpr Duration kSpin = std::chrono::seconds(1);  // two processes, two cores: nobody is kept from running

Sample failed(const absl::Status& status) { return {.failed = std::string(message_of(status))}; }

/// The parameter server's process: tells its port, serves until the worker has left.
[[noreturn]] void serve(int port_fd, const std::string& transport, transport::WaitPolicy wait) {
  absl::StatusOr<std::unique_ptr<ps::Server>> server = ps::Server::start({.listen_address = "127.0.0.1:0",
                                                                          .advertised_host = "127.0.0.1",
                                                                          .transports = {transport},
                                                                          .worker_names = {"bench"},
                                                                          .wait = wait});
  const uint16_t port = server.ok() ? (*server)->port() : 0;
  if (write(port_fd, &port, sizeof(port)) != sizeof(port) || port == 0) _exit(1);
  const std::atomic<bool> stop = false;
  (*server)->wait_finished(stop).IgnoreError();
  server->reset();  // lets the answer to Leave out
  _exit(0);
}

Sample exchange_over(const std::string& transport, uint64_t bytes, double seconds, const ExchangeOptions& options) {
  const transport::WaitPolicy wait{.spin = options.block ? Duration::zero() : kSpin};
  int ends[2];
  if (pipe(ends) != 0) return {.failed = "pipe"};
  if (fork() == 0) serve(ends[1], transport, wait);
  uint16_t port = 0;
  if (read(ends[0], &port, sizeof(port)) != sizeof(port) || port == 0) return {.failed = "the server did not start"};

  worker::ClientOptions client_options{
      .optimizer = {.kind = ps::OptimizerKind::sgd, .learning_rate = 1.0f}, .transports = {transport}, .wait = wait};
  client_options.cluster = {.ps = {fmt::format("127.0.0.1:{}", port)}, .workers = {"bench"}};
  if (options.bucket_bytes > 0) client_options.bucket_bytes = options.bucket_bytes;
  const auto count = static_cast<int64_t>(bytes / sizeof(float));
  auto joined = worker::Client::join(std::move(client_options), {{"gradient", {count}}});
  if (!joined.ok()) return failed(joined.status());
  worker::Client& client = **joined;
  std::fill(client.parameters(0).begin(), client.parameters(0).end(), 0.0f);
  absl::Status status = client.start();
  const absl::Span<float> gradient = client.gradients(0);
  const auto write_gradient = [&] { std::fill(gradient.begin(), gradient.end(), 1.0f); };
  write_gradient();
  Sample sample = measure(
      seconds,
      [&] {
        if (options.touch) write_gradient();
      },
      [&] {
        client.exchange();
        status.Update(client.wait());
      });
  if (!status.ok()) return failed(status);
  const auto expected = -static_cast<float>(client.global_step());
  for (const float value : client.parameters(0)) sample.wrong += value != expected ? 1 : 0;
  status = client.leave();
  return status.ok() ? sample : failed(status);
}

}  // namespace

std::vector<Contender> ours(const ExchangeOptions& options) {
  std::vector<Contender> contenders;
  for (const std::string transport : {"shm", "tcp"}) {
    contenders.push_back({fmt::format("gradrail {}", transport), [=](uint64_t bytes, double seconds) {
                            return exchange_over(transport, bytes, seconds, options);
                          }});
  }
  return contenders;
}

}  // namespace gradrail::bench
