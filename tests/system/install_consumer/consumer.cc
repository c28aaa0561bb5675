// Reaches into every installed library and every third party behind it, so that whatever the package forgets breaks
// this build or this run. Usage: consumer MNIST_FOLDER
#include <cstdio>

#include "transport/registry.h"
#include "worker/client.h"
#include "worker/models/workload.h"

namespace {

int fail(const absl::Status& status) {
  std::fprintf(stderr, "consumer: %s\n", status.ToString().c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  namespace worker = gradrail::worker;
  if (argc != 2) return 2;
  absl::StatusOr<std::unique_ptr<worker::Workload>> workload = worker::make_workload({.data_dir = argv[1]});
  if (!workload.ok()) return fail(workload.status());

  // Nobody listens on port 1: the answer must come from the control plane, in time.
  worker::ClientOptions options;
  options.cluster = {.ps = {"127.0.0.1:1"}, .workers = {"127.0.0.1:2"}};
  options.join_timeout = std::chrono::milliseconds(200);
  absl::StatusOr<std::unique_ptr<worker::Client>> client = worker::Client::join(options, (*workload)->schema());
  if (client.ok()) return fail(absl::InternalError("joined a cluster that does not exist"));
  std::printf("%zu transports; join: %s\n", gradrail::transport::transports().size(),
              client.status().ToString().c_str());
  return gradrail::transport::transports().empty() ? 1 : 0;
}
