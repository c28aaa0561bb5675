// Logistic regression over several workers: what it takes to distribute a trainer of one's own.
//
//   logistic --local                                               everything in this process
//   logistic --ps_hosts 10.0.0.1:2222 --worker_hosts a:1,b:1 --task_index 0      one worker of a cluster
//   logistic --local --serve --worker_hosts a:1,b:1                only the parameter server; prints its address
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <thread>

#include "base/parse_number.h"
#include "base/random.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/protocol/training.h"
#include "ps/server.h"
#include "worker/client/client.h"

namespace {

using namespace gradrail;

constexpr size_t kFeatures = 8;
constexpr size_t kBatch = 64;
constexpr int kSteps = 300;
constexpr float kGoodAccuracy = 0.97f;

/// Points of which a hidden plane decides the class.
struct Points {
  explicit Points(uint64_t seed) : random(seed) {}
  bool next(float (&x)[kFeatures]) {
    float side = 0.25f;
    for (size_t k = 0; k < kFeatures; ++k) {
      x[k] = static_cast<float>(random.normal());
      side += x[k] * (k % 2 == 0 ? 1.0f : -2.0f);
    }
    return side > 0;
  }
  Random random;
};

float probability(absl::Span<const float> w, float b, const float (&x)[kFeatures]) {
  float sum = b;
  for (size_t k = 0; k < kFeatures; ++k) sum += w[k] * x[k];
  return 1.0f / (1.0f + std::exp(-sum));
}

// --- A worker. Everything about gradrail in it is between these two lines. ---
absl::StatusOr<float> train(const worker::ClientOptions& options) {
  GRADRAIL_ASSIGN_OR_RETURN(std::unique_ptr<worker::Client> joined,
                            worker::Client::join(options, {{"w", {kFeatures}}, {"b", {1}}}));
  worker::Client& client = *joined;
  GRADRAIL_RETURN_IF_ERROR(client.start());  // the chief's zeros are as good as any beginning
  const absl::Span<float> w = client.parameters(0), dw = client.gradients(0);
  float &b = client.parameters(1)[0], &db = client.gradients(1)[0];

  Points points(options.task_index + 1);
  float x[kFeatures];
  for (int step = 0; step < kSteps; ++step) {
    std::fill(dw.begin(), dw.end(), 0.0f);
    db = 0.0f;
    for (size_t i = 0; i < kBatch; ++i) {
      const bool is_one = points.next(x);
      const float error = (probability(w, b, x) - static_cast<float>(is_one)) / kBatch;
      for (size_t k = 0; k < kFeatures; ++k) dw[k] += error * x[k];
      db += error;
    }
    client.exchange();
    GRADRAIL_RETURN_IF_ERROR(client.wait());
  }
  GRADRAIL_RETURN_IF_ERROR(client.barrier("trained"));
  GRADRAIL_RETURN_IF_ERROR(client.pull());

  Points unseen(1'000'000);
  int right = 0;
  for (int i = 0; i < 2000; ++i) right += unseen.next(x) == (probability(w, b, x) > 0.5f) ? 1 : 0;
  GRADRAIL_RETURN_IF_ERROR(client.leave());
  return static_cast<float>(right) / 2000.0f;
}
// -----------------------------------------------------------------------------

struct Arguments {
  std::string ps_hosts;
  std::string worker_hosts = "localhost:1";
  std::string mode = "async";
  uint32_t task_index = 0;
  bool local = false;
  bool serve = false;
};

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    const auto value = [&] { return i + 1 < argc ? argv[++i] : ""; };
    if (name == "--local") arguments.local = true;
    if (name == "--serve") arguments.serve = true;
    if (name == "--ps_hosts") arguments.ps_hosts = value();
    if (name == "--worker_hosts") arguments.worker_hosts = value();
    if (name == "--mode") arguments.mode = value();
    // join() refuses the largest index, which no worker has.
    if (name == "--task_index") arguments.task_index = parse_number<uint32_t>(value()).value_or(UINT32_MAX);
  }
  return arguments;
}

bool complain(const absl::Status& status) {
  fmt::print(stderr, "logistic: {}\n", status.ToString());
  return false;
}

/// Trains as one worker and prints the result.
bool run_worker(const Arguments& arguments, uint32_t task_index) {
  const absl::StatusOr<ps::ClusterSpec> cluster = ps::cluster_from_hosts(arguments.ps_hosts, arguments.worker_hosts);
  const absl::StatusOr<ps::Mode> mode = ps::parse_mode(arguments.mode);
  const absl::StatusOr<float> accuracy =
      !cluster.ok() ? cluster.status()
      : !mode.ok()  ? mode.status()
                    : train({.cluster = *cluster,
                             .task_index = task_index,
                             .mode = mode->kind,
                             .mode_bound = mode->bound,
                             .mode_grace = mode->grace,
                             .mode_drops_late = mode->drops_late,
                             .optimizer = {.kind = ps::OptimizerKind::sgd, .learning_rate = 0.5f}});
  if (!accuracy.ok()) return complain(accuracy.status());
  fmt::print("worker {}: accuracy {:.4f}\n", task_index, *accuracy);
  return *accuracy >= kGoodAccuracy;
}

/// A parameter server and all workers (or none of them) in this process.
bool run_local(Arguments arguments) {
  const absl::StatusOr<ps::ClusterSpec> names = ps::cluster_from_hosts("any:2222", arguments.worker_hosts);
  if (!names.ok()) return complain(names.status());
  const auto worker_count = static_cast<uint32_t>(names->workers.size());
  const absl::StatusOr<std::unique_ptr<ps::Server>> server = ps::Server::start({.listen_address = "127.0.0.1:0",
                                                                                .advertised_host = "127.0.0.1",
                                                                                .transports = {"shm", "tcp"},
                                                                                .worker_names = names->workers});
  if (!server.ok()) return complain(server.status());
  arguments.ps_hosts = fmt::format("127.0.0.1:{}", (*server)->port());
  fmt::print("ps {}\n", arguments.ps_hosts);
  std::fflush(stdout);
  std::atomic<bool> all_good = true;
  std::vector<std::thread> workers;
  for (uint32_t i = 0; i < worker_count && !arguments.serve; ++i) {
    workers.emplace_back([&, i] {
      if (!run_worker(arguments, i)) all_good = false;
    });
  }
  const std::atomic<bool> never_stop = false;
  const absl::Status finished = (*server)->wait_finished(never_stop);
  for (std::thread& worker : workers) worker.join();
  if (!finished.ok()) return complain(finished);
  return all_good;
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments arguments = parse(argc, argv);
  const bool good = arguments.local ? run_local(arguments) : run_worker(arguments, arguments.task_index);
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
