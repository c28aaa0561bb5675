// Three workers in sync mode, over real servers and transports, arrive where one process arrives that averages the same
// three batches in each step.
#include "tests/worker/client/cluster.h"
#include "tests/worker/models/reference_trainer.h"
#include "worker/models/workload.h"

namespace gradrail::worker {
namespace {

constexpr size_t kWorkers = 3;
constexpr size_t kSteps = 20;
constexpr float kLearningRate = 0.5f;  // far from the initial values within these steps

/// One worker's steps; its parameters after the last.
std::vector<float> train_steps(ClientOptions options, uint32_t task_index) {
  options.mode.kind = ModeKind::sync;
  options.optimizer.learning_rate = kLearningRate;
  auto workload = make_workload({.model = "mlp", .batch_size = 100, .seed = 7, .task_index = task_index});
  EXPECT_TRUE(workload.ok()) << workload.status();
  const std::unique_ptr<Client> client = join(options, (*workload)->schema());
  if (client == nullptr) return {};
  std::vector<absl::Span<float>> initial, gradients;
  std::vector<absl::Span<const float>> parameters;
  for (size_t i = 0; i < client->schema().size(); ++i) {
    initial.push_back(client->parameters(i));
    parameters.push_back(client->parameters(i));
    gradients.push_back(client->gradients(i));
  }
  if (task_index == 0) (*workload)->initialise(7, initial);
  absl::Status status = client->start();
  for (size_t step = 0; step < kSteps && status.ok(); ++step) {
    status = (*workload)->step(parameters, gradients, [&](size_t tensor) { client->ready(tensor); }).status();
    if (!status.ok()) break;
    client->exchange();
    status = client->wait();
  }
  EXPECT_TRUE(status.ok()) << status;
  return flatten(*client);
}

class SyncReference : public ::testing::TestWithParam<const char*> {};

TEST_P(SyncReference, ThreeWorkersFollowTheSingleProcess) {
  const Watchdog watchdog;
  const absl::StatusOr<std::string> folder = default_mnist_folder();
  ASSERT_TRUE(folder.ok()) << folder.status();
  const absl::StatusOr<MnistData> data = load_mnist(*folder);
  ASSERT_TRUE(data.ok()) << data.status();
  const ReferenceResult expected =
      train_reference(data->train, {.workers = kWorkers, .steps = kSteps, .learning_rate = kLearningRate, .seed = 7});

  Cluster cluster({.worker_count = kWorkers, .transports = {GetParam()}});
  std::vector<std::vector<float>> found(kWorkers);
  in_parallel(kWorkers, [&](uint32_t task) {
    ClientOptions options = cluster.options(task);
    options.transport.order = {GetParam()};
    found[task] = train_steps(std::move(options), task);
  });

  std::vector<float> wanted;
  for (const auto& tensor : expected.parameters) wanted.insert(wanted.end(), tensor.begin(), tensor.end());
  EXPECT_EQ(found[0], found[1]);  // bit for bit
  EXPECT_EQ(found[0], found[2]);
  ASSERT_EQ(found[0].size(), wanted.size());
  double worst = 0.0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const double scale = std::max(1.0, std::abs(static_cast<double>(wanted[i])));
    worst = std::max(worst, std::abs(static_cast<double>(found[0][i]) - wanted[i]) / scale);
  }
  EXPECT_LT(worst, 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Over, SyncReference, ::testing::Values("shm", "tcp"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace gradrail::worker
