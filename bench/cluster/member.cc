#include "bench/cluster/member.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>
#include <thread>

#include "base/status.h"
#include "bench/cluster/load_json.h"
#include "bench/suites/stages.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "ps/server.h"

namespace gradrail::bench {
namespace {

nlohmann::json run_server(const ExchangeLoad& load, RunShared& shared, uint32_t task) {
  absl::StatusOr<std::unique_ptr<ps::Server>> server =
      ps::Server::start({.task_index = task,
                         .listen_address = to_string({.host = load.bind_host, .port = 0}),
                         .advertised_host = load.bind_host,
                         .shard_count = load.shards,
                         .transports = {load.transport},
                         .rails = load.rails,
                         .rdma_only = load.rdma_only,
                         .ofi_provider = load.ofi_provider,
                         .worker_names = worker_names(load.workers),
                         .wait = wait_of(load),
                         .device = load.ps_device,
                         // Hundreds of workers on a few cores wait for a core. A killed one is found immediately.
                         .heartbeat_timeout = start_up(load),
                         .marks = load.stages ? kMarks : 0,
                         .ablation = load.ablation,
                         .security = security_of(load)});
  if (!server.ok()) return {{"failed", std::string(message_of(server.status()))}};
  shared.server = getpid();
  shared.port = (*server)->port();  // ends the parent's wait
  const std::atomic<bool> stop = false;
  const absl::Status ended = (*server)->wait_finished(stop);
  const std::vector<Mark> marks = (*server)->marks();
  server->reset();  // lets the answer to Leave out
  nlohmann::json result = {{"rank", rank_json(fmt::format("ps/{}", task))}, {"marks", to_json(marks)}};
  if (!ended.ok()) result["failed"] = std::string(message_of(ended));
  return result;
}

}  // namespace

SharedPage::SharedPage() : SharedPage(memfd_create("run", 0)) {
  if (shared_ != nullptr) new (shared_) RunShared;
}

SharedPage::SharedPage(int fd) : fd_(fd), shared_(nullptr) {
  if (!fd_ || ftruncate(fd, sizeof(RunShared)) != 0) return;
  void* const page = mmap(nullptr, sizeof(RunShared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (page != MAP_FAILED) shared_ = static_cast<RunShared*>(page);
}

SharedPage::~SharedPage() {
  if (shared_ != nullptr) munmap(shared_, sizeof(RunShared));
}

nlohmann::json run_task(const nlohmann::json& job) {
  SharedPage page(job.at("page").get<int>());
  if (page.get() == nullptr) return {{"failed", "no memory"}};
  const ExchangeLoad load = load_from(job.at("load"));
  const uint32_t task = job.at("task");
  return job.at("do") == "serve" ? run_server(load, *page.get(), task) : work(load, *page.get(), task);
}

void LocalMember::start(const char* what, const ExchangeLoad& load, uint32_t task) {
  child_.emplace(Subprocess::start({{"do", what}, {"task", task}, {"load", to_json(load)}, {"page", page_.fd()}}));
}

absl::StatusOr<std::string> LocalMember::serve(const ExchangeLoad& load, uint32_t task, TimePoint deadline) {
  const std::atomic<int>& port = page_.get()->port;
  page_.get()->port = 0;
  start("serve", load, task);
  while (port == 0 && Clock::now() < deadline && !child_->is_done(std::chrono::milliseconds(0)))
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  // The child has failed otherwise, or is late: its result has the cause.
  if (port > 0) return to_string({.host = load.bind_host, .port = static_cast<uint16_t>(port.load())});
  const absl::StatusOr<nlohmann::json> why = collect(deadline);
  if (!why.ok()) return why.status();
  return absl::UnavailableError(why->value("failed", "did not start"));
}

absl::Status LocalMember::work(const ExchangeLoad& load, uint32_t task) {
  start("work", load, task);
  return absl::OkStatus();
}

absl::StatusOr<nlohmann::json> LocalMember::collect(TimePoint deadline) {
  if (!child_) return absl::FailedPreconditionError("has no task");
  absl::StatusOr<nlohmann::json> result = child_->result(deadline);
  child_.reset();
  return result;
}

absl::Status RankMember::begin() {
  member_.reset();  // the member refers to the page
  page_ = std::make_unique<SharedPage>();
  if (page_->get() == nullptr) return absl::ResourceExhaustedError("no memory");
  member_ = std::make_unique<LocalMember>(*page_);
  return absl::OkStatus();
}

absl::StatusOr<std::string> RankMember::serve(const ExchangeLoad& load, uint32_t task, TimePoint deadline) {
  GRADRAIL_RETURN_IF_ERROR(begin());
  return member_->serve(load, task, deadline);
}

absl::Status RankMember::work(const ExchangeLoad& load, uint32_t task) {
  GRADRAIL_RETURN_IF_ERROR(begin());
  return member_->work(load, task);
}

absl::StatusOr<nlohmann::json> RankMember::collect(TimePoint deadline) {
  if (member_ == nullptr) return absl::FailedPreconditionError("has no task");
  absl::StatusOr<nlohmann::json> result = member_->collect(deadline);
  member_.reset();
  return result;
}

}  // namespace gradrail::bench
