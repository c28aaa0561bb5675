// A worker in C++ that makes one exchange. Usage: worker_cpp PS_HOSTS WORKER_HOSTS TASK_INDEX VERSION
// Worker i pushes the gradient i + 1. With four workers and learning rate 1, each parameter falls from 10 to 7.5.
#include <gradrail/client.h>
#include <gradrail/gradrail.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

using gradrail::Client;
using gradrail::ClientOptions;

absl::Status train(const ClientOptions& options) {
  const gradrail::Schema schema = {{"w", {4}}};
  if (absl::Status valid = validate(schema); !valid.ok()) return valid;
  absl::StatusOr<std::unique_ptr<Client>> joined = Client::join(options, schema);
  if (!joined.ok()) return joined.status();
  Client& client = **joined;
  const absl::Span<float> parameters = client.parameters(0), gradients = client.gradients(0);
  std::fill(parameters.begin(), parameters.end(), 10.0f);
  if (absl::Status started = client.start(); !started.ok()) return started;
  std::fill(gradients.begin(), gradients.end(), static_cast<float>(options.task_index + 1));
  client.exchange();
  if (absl::Status waited = client.wait(); !waited.ok()) return waited;
  for (const float value : parameters) {
    if (value != 7.5f) return absl::DataLossError("parameter " + std::to_string(value) + " instead of 7.5");
  }
  const gradrail::ClientStats stats = client.statistics().now();
  std::printf("worker.cc: %d exchange in %lld ns, %s registered\n", static_cast<int>(stats.exchange.count()),
              static_cast<long long>(stats.exchange.quantile_ns(0.5)), stats.registered.text().c_str());
  return client.leave();
}

absl::StatusOr<ClientOptions> parse(char** arguments) {
  absl::StatusOr<gradrail::ClusterSpec> cluster = gradrail::cluster_from_hosts(arguments[1], arguments[2]);
  if (!cluster.ok()) return cluster.status();
  absl::StatusOr<gradrail::Mode> mode = gradrail::parse_mode("sync");
  if (!mode.ok()) return mode.status();
  ClientOptions options;
  options.cluster = *cluster;
  options.mode = *mode;
  options.task_index = static_cast<uint32_t>(std::atoi(arguments[3]));
  options.optimizer.learning_rate = 1.0f;
  options.recovery.join_timeout = std::chrono::minutes(1);
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  if (std::string(gradrail_version()) != argv[4]) return 3;
  // A function of each other exported part, so that a missing symbol fails the link.
  if (gradrail::read_secret_file("/no/such/file").ok()) return 4;
  if (gradrail::parse_optimizer("none").ok() || gradrail::parse_tf_config("{").ok()) return 5;
  if (!gradrail::validate(gradrail::Security{.insecure = true}).ok()) return 6;
  const absl::StatusOr<ClientOptions> options = parse(argv);
  const absl::Status status = options.ok() ? train(*options) : options.status();
  if (!status.ok()) std::fprintf(stderr, "worker.cc: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
