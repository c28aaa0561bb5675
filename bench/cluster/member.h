#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/file_descriptor.h"
#include "bench/driver/subprocess.h"
#include "bench/suites/exchange_worker.h"

namespace gradrail::bench {

/// A process of a run, which does one task after the other.
class Member {
 public:
  virtual ~Member() = default;
  /// Starts a server; returns the address of its control plane. Errors give the reason for a failure.
  virtual absl::StatusOr<std::string> serve(const ExchangeLoad& load, uint32_t task, TimePoint deadline) = 0;
  /// Starts a worker. Errors UNAVAILABLE: the process has ended, for this task and all others.
  virtual absl::Status work(const ExchangeLoad& load, uint32_t task) = 0;
  /// Whether collect() would return immediately; waits no longer than this.
  virtual bool is_done(Duration timeout) = 0;
  /// Number that grows while the exchanges of its worker end, at the time of the last is_done().
  virtual uint64_t reports() const = 0;
  /// Result of work() in exchange_worker.h. Errors  Those of Subprocess::result().
  virtual absl::StatusOr<nlohmann::json> collect(TimePoint deadline) = 0;
  /// Ends the task, if there is one.
  virtual void abandon() = 0;
};

/// Memory for RunShared that the processes of a run on this host map.
class SharedPage {
 public:
  SharedPage();
  explicit SharedPage(int fd);  ///< maps a page of another process
  ~SharedPage();
  SharedPage(const SharedPage&) = delete;
  SharedPage& operator=(const SharedPage&) = delete;
  RunShared* get() { return shared_; }  ///< null: no memory
  /// Child processes inherit it.
  int fd() const { return fd_.get(); }

 private:
  FileDescriptor fd_;
  RunShared* shared_;
};

/// A member on this host: a process for each task.
class LocalMember final : public Member {
 public:
  /// `page` has memory and outlives it.
  explicit LocalMember(SharedPage& page) : page_(page) {}
  absl::StatusOr<std::string> serve(const ExchangeLoad& load, uint32_t task, TimePoint deadline) override;
  absl::Status work(const ExchangeLoad& load, uint32_t task) override;
  bool is_done(Duration timeout) override { return !child_ || child_->is_done(timeout); }
  uint64_t reports() const override { return page_.get()->reports; }
  absl::StatusOr<nlohmann::json> collect(TimePoint deadline) override;
  void abandon() override { child_.reset(); }

 private:
  void start(const char* what, const ExchangeLoad& load, uint32_t task);
  SharedPage& page_;
  std::optional<Subprocess> child_;
};

/// A rank of a run over several processes: each task has new memory, and a separate process on this host.
class RankMember final : public Member {
 public:
  absl::StatusOr<std::string> serve(const ExchangeLoad& load, uint32_t task, TimePoint deadline) override;
  /// `load` has the number of exchanges, because ranks of several hosts share no memory.
  absl::Status work(const ExchangeLoad& load, uint32_t task) override;
  bool is_done(Duration timeout) override { return member_ == nullptr || member_->is_done(timeout); }
  uint64_t reports() const override { return member_ == nullptr ? 0 : member_->reports(); }
  absl::StatusOr<nlohmann::json> collect(TimePoint deadline) override;
  void abandon() override { member_.reset(); }

 private:
  absl::Status begin();
  std::unique_ptr<SharedPage> page_;
  std::unique_ptr<LocalMember> member_;
};

/// The job of a LocalMember's process: {"do": "serve" or "work", "task": its index, "load": …, "page": its descriptor}.
nlohmann::json run_task(const nlohmann::json& job);

}  // namespace gradrail::bench
