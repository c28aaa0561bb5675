// Logistic regression over several workers: what it takes to distribute a trainer of one's own. One worker of a cluster:
//
//   logistic <ps hosts> <worker hosts> <task index> [sync|async]
#include <gradrail/client.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace {

constexpr size_t kFeatures = 8;
constexpr size_t kBatch = 64;
constexpr int kSteps = 300;
constexpr double kGoodAccuracy = 0.97;

/// Points of which a hidden plane decides the class.
class Points {
 public:
  explicit Points(uint32_t seed) : random_(seed) {}

  bool next(float (&x)[kFeatures]) {
    float side = 0.25f;
    for (size_t k = 0; k < kFeatures; ++k) {
      x[k] = normal_(random_);
      side += x[k] * (k % 2 == 0 ? 1.0f : -2.0f);
    }
    return side > 0;
  }

 private:
  std::mt19937 random_;
  std::normal_distribution<float> normal_;
};

float probability(absl::Span<const float> w, float b, const float (&x)[kFeatures]) {
  float sum = b;
  for (size_t k = 0; k < kFeatures; ++k) sum += w[k] * x[k];
  return 1.0f / (1.0f + std::exp(-sum));
}

double accuracy(absl::Span<const float> w, float b) {
  Points unseen(1'000'000);
  float x[kFeatures];
  int right = 0;
  for (int i = 0; i < 2000; ++i) right += unseen.next(x) == (probability(w, b, x) > 0.5f) ? 1 : 0;
  return right / 2000.0;
}

absl::StatusOr<gradrail::ClientOptions> parse(int argc, char** argv) {
  if (argc < 4)
    return absl::InvalidArgumentError("usage: logistic <ps hosts> <worker hosts> <task index> [sync|async]");
  const absl::StatusOr<gradrail::ClusterSpec> cluster = gradrail::cluster_from_hosts(argv[1], argv[2]);
  if (!cluster.ok()) return cluster.status();
  const absl::StatusOr<gradrail::Mode> mode = gradrail::parse_mode(argc > 4 ? argv[4] : "async");
  if (!mode.ok()) return mode.status();
  return gradrail::ClientOptions{.cluster = *cluster,
                                 .task_index = static_cast<uint32_t>(std::atoi(argv[3])),
                                 .mode = *mode,
                                 .optimizer = {.learning_rate = 0.5f}};
}

absl::StatusOr<double> train(const gradrail::ClientOptions& options) {
  const auto joined = gradrail::Client::join(options, {{"w", {kFeatures}}, {"b", {1}}});
  if (!joined.ok()) return joined.status();
  gradrail::Client& client = **joined;
  absl::Status status = client.start();  // zeros are good initial values
  const absl::Span<float> w = client.parameters(0), dw = client.gradients(0);
  float &b = client.parameters(1)[0], &db = client.gradients(1)[0];

  Points points(options.task_index + 1);
  float x[kFeatures];
  for (int step = 0; status.ok() && step < kSteps; ++step) {
    std::fill(dw.begin(), dw.end(), 0.0f);
    db = 0.0f;
    for (size_t i = 0; i < kBatch; ++i) {
      const bool is_one = points.next(x);
      const float error = (probability(w, b, x) - static_cast<float>(is_one)) / kBatch;
      for (size_t k = 0; k < kFeatures; ++k) dw[k] += error * x[k];
      db += error;
    }
    client.exchange();
    status = client.wait();
  }
  if (status.ok()) status = client.barriers().wait("trained");
  if (status.ok()) status = client.pull();
  const double result = accuracy(w, b);
  if (status.ok()) status = client.leave();
  if (!status.ok()) return status;
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  const absl::StatusOr<gradrail::ClientOptions> options = parse(argc, argv);
  const absl::StatusOr<double> accuracy = options.ok() ? train(*options) : options.status();
  if (!accuracy.ok()) {
    std::fprintf(stderr, "logistic: %s\n", accuracy.status().ToString().c_str());
    return EXIT_FAILURE;
  }
  std::printf("worker %u: accuracy %.4f\n", options->task_index, *accuracy);
  return *accuracy >= kGoodAccuracy ? EXIT_SUCCESS : EXIT_FAILURE;
}
