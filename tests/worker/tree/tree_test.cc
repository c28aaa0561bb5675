// Nodes of a tree in one process: servers whose stores exchange with a parent.
#include "ps/server.h"
#include "tests/worker/client/cluster.h"
#include "worker/tree/tree_parent.h"

namespace gradrail::tree {
namespace {

using ::testing::Each;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;
using worker::Cluster;
using namespace std::chrono_literals;

/// The ps task of a node, with the thread that a real one has.
class Node {
 public:
  /// `upward`: the options of this node as a worker of its parent.
  Node(ClientOptions upward, uint32_t worker_count, uint32_t shards = 1, uint16_t port = 0) {
    for (uint32_t i = 0; i < worker_count; ++i) options_.cluster.workers.push_back(fmt::format("127.0.0.1:{}", i + 1));
    options_.optimizer = upward.optimizer;
    options_.mode.kind = ModeKind::sync;
    options_.bucket_bytes = upward.bucket_bytes;
    options_.transport.order = upward.transport.order;
    options_.recovery.join_timeout = 20s;
    options_.hooks.log = upward.hooks.log;
    parent_ = TreeParent::start(std::move(upward)).value();
    server_ = ps::Server::start({.listen_address = fmt::format("127.0.0.1:{}", port),
                                 .advertised_host = "127.0.0.1",
                                 .shard_count = shards,
                                 .transports = options_.transport.order,
                                 .worker_names = options_.cluster.workers,
                                 .parent = parent_,
                                 .heartbeat_timeout = 10s})
                  .value();
    options_.cluster.ps = {fmt::format("127.0.0.1:{}", server_->port())};
    thread_ = std::thread([this] {
      outcome_ = server_->wait_finished(stop_);
      has_ended_.store(true);
    });
  }
  ~Node() { stop(); }
  void stop() {
    stop_.store(true);
    if (thread_.joinable()) thread_.join();
    server_.reset();
    parent_.reset();
  }

  ClientOptions options(uint32_t task_index) const {
    ClientOptions options = options_;
    options.task_index = task_index;
    return options;
  }
  uint32_t worker_count() const { return static_cast<uint32_t>(options_.cluster.workers.size()); }
  uint16_t port() const { return server_->port(); }
  absl::Status outcome() {
    return worker::eventually([&] { return has_ended_.load(); }) ? outcome_
                                                                 : absl::DeadlineExceededError("it continues");
  }

 private:
  ClientOptions options_;
  std::shared_ptr<TreeParent> parent_;
  std::unique_ptr<ps::Server> server_;
  std::atomic<bool> stop_ = false;
  std::atomic<bool> has_ended_ = false;
  absl::Status outcome_;
  std::thread thread_;
};

/// What all workers push in one step, by the index of each among all of them: the mean of `workers` gradients.
std::vector<float> expected_after(uint64_t steps, uint32_t workers) {
  std::vector<float> values;
  size_t elements = 0;
  for (const Tensor& tensor : worker::odd_schema()) elements += tensor.elements();
  for (size_t element = 0; element < elements; ++element) {
    float value = worker::initial_of(element);
    for (uint64_t step = 1; step <= steps; ++step) {
      float sum = 0.0f;
      for (uint32_t each = 0; each < workers; ++each) sum += worker::gradient_of(each, step, element);
      value -= sum / static_cast<float>(workers);
    }
    values.push_back(value);
  }
  return values;
}

/// Makes steps as the worker with the index `number` among all leaves.
std::vector<float> train(const ClientOptions& options, uint32_t number, uint64_t steps) {
  const std::unique_ptr<Client> client = worker::join(options, worker::odd_schema());
  if (client == nullptr) return {};
  worker::fill_initial(*client);
  absl::Status status = client->start();
  for (uint64_t step = 1; step <= steps && status.ok(); ++step) {
    worker::fill_gradients(*client, number, step);
    client->exchange();
    status = client->wait();
    EXPECT_EQ(client->global_step(), step);
  }
  EXPECT_TRUE(status.ok()) << status;
  const std::vector<float> parameters = worker::flatten(*client);
  EXPECT_TRUE(client->leave().ok());
  return parameters;
}

/// All workers of the nodes train at the same time. Their parameters, node by node.
std::vector<std::vector<float>> train_all(const std::vector<Node*>& nodes, uint64_t steps) {
  std::vector<ClientOptions> leaves;
  for (const Node* const node : nodes) {
    for (uint32_t i = 0; i < node->worker_count(); ++i) leaves.push_back(node->options(i));
  }
  std::vector<std::vector<float>> found(leaves.size());
  worker::in_parallel(static_cast<uint32_t>(leaves.size()),
                      [&](uint32_t leaf) { found[leaf] = train(leaves[leaf], leaf, steps); });
  return found;
}

class Tree : public ::testing::TestWithParam<const char*> {
 protected:
  const worker::Watchdog watchdog_;
};

TEST_P(Tree, HasTheMeanOfAllWorkers) {
  Cluster root({.shards_per_ps = 2, .worker_count = 2, .transports = {GetParam()}});
  // Other cuts into shards: the parts of a gradient end at other elements.
  Node first(root.options(0, ModeKind::sync), 2, 3), second(root.options(1, ModeKind::sync), 2);
  // Small integers and two times two workers: each mean is exact.
  EXPECT_THAT(train_all({&first, &second}, 3), Each(expected_after(3, 4)));
  EXPECT_TRUE(first.outcome().ok());
  EXPECT_TRUE(second.outcome().ok());
  EXPECT_TRUE(root.outcome(0).ok());
}

TEST_P(Tree, WeighsANodeByItsWorkers) {
  Cluster root({.worker_count = 2, .transports = {GetParam()}});
  Node first(root.options(0, ModeKind::sync), 3), second(root.options(1, ModeKind::sync), 1);
  for (const std::vector<float>& found : train_all({&first, &second}, 2))
    EXPECT_THAT(found, Pointwise(FloatNear(1e-4f), expected_after(2, 4)));
}

TEST_P(Tree, HasAnyNumberOfLevels) {
  Cluster root({.worker_count = 2, .transports = {GetParam()}});
  Node middle(root.options(0, ModeKind::sync), 2), right(root.options(1, ModeKind::sync), 2);
  Node first(middle.options(0), 1), second(middle.options(1), 1);
  EXPECT_THAT(train_all({&first, &second, &right}, 3), Each(expected_after(3, 4)));
}

INSTANTIATE_TEST_SUITE_P(Built, Tree, ::testing::Values("shm", "tcp"),
                         [](const auto& built) { return std::string(built.param); });

TEST(TreeNode, PacksInBothDirections) {
  const worker::Watchdog watchdog;
  for (const PushFormat push : {PushFormat(PushFormat::bf16), PushFormat(PushFormat::int8)}) {
    Cluster root({.worker_count = 2, .transports = {"tcp"}});
    Node first(root.options(0, ModeKind::sync), 2), second(root.options(1, ModeKind::sync), 2);
    std::vector<std::vector<float>> found(4);
    worker::in_parallel(4, [&](uint32_t leaf) {
      ClientOptions options = (leaf < 2 ? first : second).options(leaf % 2);
      worker::set_push(options, push);
      options.compression.returns = ReturnFormat::delta;
      found[leaf] = train(options, leaf, 3);
    });
    EXPECT_THAT(found, Each(found[0]));
    EXPECT_THAT(found[0], Pointwise(FloatNear(1.0f), expected_after(3, 4)));
  }
}

TEST(TreeNode, StartsAgainWithTheParametersOfItsParent) {
  const worker::Watchdog watchdog;
  Cluster root({.worker_count = 1, .transports = {"tcp"}});
  auto node = std::make_unique<Node>(root.options(0, ModeKind::sync), 1);
  const uint16_t port = node->port();
  ClientOptions options = node->options(0);
  options.recovery.rejoin_timeout = 60s;
  const std::unique_ptr<Client> client = worker::join(options, worker::odd_schema());
  ASSERT_NE(client, nullptr);
  worker::fill_initial(*client);
  ASSERT_TRUE(client->start().ok());
  const auto step = [&](uint64_t number) {
    worker::fill_gradients(*client, 0, number);
    client->exchange();
    return client->wait();
  };
  ASSERT_TRUE(step(1).ok());
  node->stop();
  std::thread again([&] { node = std::make_unique<Node>(root.options(0, ModeKind::sync), 1, 1, port); });
  absl::Status status = step(2);
  again.join();
  ASSERT_TRUE(status.ok()) << status;
  for (uint64_t next = client->position() + 1; next <= 4 && status.ok(); ++next) status = step(next);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(client->global_step(), 4u);
  EXPECT_EQ(client->position(), 4u);
  EXPECT_EQ(worker::flatten(*client), expected_after(4, 1));
}

TEST(TreeNode, ServesSyncAlone) {
  Cluster root({.worker_count = 1});
  const Node node(root.options(0, ModeKind::sync), 1);
  ClientOptions options = node.options(0);
  options.mode.kind = ModeKind::async;
  const absl::StatusOr<std::unique_ptr<Client>> refused = Client::join(options, worker::odd_schema());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("--mode async: a parameter server with --parent serves"));
}

TEST(TreeNode, ItsParentSavesCheckpoints) {
  const worker::TemporaryFolder folder;
  Cluster root({.worker_count = 1, .checkpoint_dir = folder.path()});
  const Node node(root.options(0, ModeKind::sync), 1);
  const std::unique_ptr<Client> client = worker::join(node.options(0), worker::odd_schema());
  ASSERT_NE(client, nullptr);
  worker::fill_initial(*client);
  ASSERT_TRUE(client->start().ok());
  EXPECT_TRUE(client->checkpoints().is_enabled());
  const absl::StatusOr<std::vector<std::string>> saved = client->checkpoints().save();
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(ps::newest_checkpoint(folder.path()).value(), 0u);
}

TEST(TreeNode, ALostParentEndsItsService) {
  auto root = std::make_unique<Cluster>(worker::ClusterShape{.worker_count = 1, .transports = {"tcp"}});
  Node node(root->options(0, ModeKind::sync), 1);
  const std::unique_ptr<Client> client = worker::join(node.options(0), worker::odd_schema());
  ASSERT_NE(client, nullptr);
  worker::fill_initial(*client);
  ASSERT_TRUE(client->start().ok());
  root.reset();
  EXPECT_EQ(node.outcome().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace gradrail::tree
