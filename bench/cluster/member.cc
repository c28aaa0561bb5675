#include "bench/cluster/member.h"

#include <sys/mman.h>

#include <thread>

#include "base/status.h"
#include "bench/suites/stages.h"
#include "fmt/format.h"
#include "ps/server.h"

namespace gradrail::bench {
namespace {

nlohmann::json run_server(const ExchangeLoad& load, RunShared& shared, uint32_t task) {
  absl::StatusOr<std::unique_ptr<ps::Server>> server =
      ps::Server::start({.task_index = task,
                         .listen_address = ps::to_string({.host = load.bind_host, .port = 0}),
                         .advertised_host = load.bind_host,
                         .shard_count = load.shards,
                         .transports = {load.transport},
                         .rdma_only = load.rdma_only,
                         .ofi_provider = load.ofi_provider,
                         .worker_names = worker_names(load.workers),
                         .wait = wait_of(load),
                         .device = load.ps_device,
                         .marks = load.stages ? kMarks : 0,
                         .ablation = load.ablation,
                         .security = kOpen});
  // The parent polls this field; -1 ends its wait where a server failed to start.
  shared.port = server.ok() ? (*server)->port() : -1;
  if (!server.ok()) return {{"failed", std::string(message_of(server.status()))}};
  const std::atomic<bool> stop = false;
  const absl::Status ended = (*server)->wait_finished(stop);
  const std::vector<Mark> marks = (*server)->marks();
  server->reset();  // lets the answer to Leave out
  nlohmann::json result = {{"rank", rank_json(fmt::format("ps/{}", task))}, {"marks", to_json(marks)}};
  if (!ended.ok()) result["failed"] = std::string(message_of(ended));
  return result;
}

}  // namespace

SharedPage::SharedPage()
    : page_(mmap(nullptr, sizeof(RunShared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)),
      shared_(page_ == MAP_FAILED ? nullptr : new (page_) RunShared) {}

SharedPage::~SharedPage() {
  if (shared_ != nullptr) munmap(page_, sizeof(RunShared));
}

absl::StatusOr<std::string> LocalMember::serve(const ExchangeLoad& load, uint32_t task, TimePoint deadline) {
  shared_.port = 0;
  child_.emplace([&] { return run_server(load, shared_, task); });
  while (shared_.port == 0 && Clock::now() < deadline) std::this_thread::sleep_for(std::chrono::microseconds(200));
  // Else the child has failed, or is late: its result has the cause.
  if (shared_.port > 0)
    return ps::to_string({.host = load.bind_host, .port = static_cast<uint16_t>(shared_.port.load())});
  const absl::StatusOr<nlohmann::json> why = collect(deadline);
  if (!why.ok()) return why.status();
  return absl::UnavailableError(why->value("failed", "did not start"));
}

absl::Status LocalMember::work(const ExchangeLoad& load, uint32_t task) {
  child_.emplace([&, task] { return bench::work(load, shared_, task); });
  return absl::OkStatus();
}

absl::StatusOr<nlohmann::json> LocalMember::collect(TimePoint deadline) {
  if (!child_) return absl::FailedPreconditionError("has no task");
  absl::StatusOr<nlohmann::json> result = child_->result(deadline);
  child_.reset();
  return result;
}

}  // namespace gradrail::bench
