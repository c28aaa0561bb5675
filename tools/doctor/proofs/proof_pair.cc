#include "tools/doctor/proofs/proof_pair.h"

#include <array>
#include <atomic>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "base/resource_limits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "transport/wait_set.h"

namespace gradrail::tools::doctor {
namespace {

using transport::Completion;

/// Opening takes some seconds where a library examines many devices; the put itself takes less than 1 ms.
constexpr Duration kPairDeadline = std::chrono::seconds(20);
/// How long to look at the other thread and at the context by turns.
constexpr Duration kTurn = std::chrono::milliseconds(2);

class HostMemory final : public ProofMemory {
 public:
  explicit HostMemory(SharedMemory memory) : memory_(std::move(memory)) {}

  MemorySpan span() const override { return memory_.span(); }

  absl::Status fill(uint32_t seed) override {
    for (size_t i = 0; i < kProofBytes; ++i) {
      memory_.data()[i] = proof_pattern(seed, i);
      // The complement: a put that did not arrive differs in each byte.
      memory_.data()[kProofBytes + i] = ~proof_pattern(seed, i);
    }
    return absl::OkStatus();
  }

  absl::Status compare(uint32_t seed) override {
    return compare_with_pattern({memory_.data() + kProofBytes, kProofBytes}, seed);
  }

 private:
  SharedMemory memory_;
};

/// The messages between the two threads.
class PairExchange {
 public:
  void say(std::string PairExchange::*what, const std::string& text) {
    const MutexLock lock(mutex_);
    this->*what = text;
  }
  std::string hear(std::string PairExchange::*what) {
    const MutexLock lock(mutex_);
    return this->*what;
  }

  std::string address ABSL_GUARDED_BY(mutex_);
  std::string key_of_first ABSL_GUARDED_BY(mutex_);
  std::string key_of_second ABSL_GUARDED_BY(mutex_);
  std::atomic<int> arrived = 0;
  std::atomic<bool> failed = false;

 private:
  Mutex mutex_;
};

class End {
 public:
  End(const PairOptions& options, PairExchange& exchange, bool first)
      : options_(options), exchange_(exchange), first_(first), deadline_(Clock::now() + kPairDeadline) {}

  ~End() {
    if (context_ != nullptr && connection_ != nullptr) context_->close(connection_);
  }

  absl::Status run() {
    absl::Status status = run_steps();
    // The other thread then fails too, at its next look, instead of waiting for the deadline.
    if (!status.ok()) exchange_.failed = true;
    return status;
  }

  const PairResult& result() const { return result_; }

 private:
  absl::Status run_steps() {
    // One after the other: some transports set their library's environment when they are opened.
    if (!first_) GRADRAIL_RETURN_IF_ERROR(wait_for_listener());
    GRADRAIL_RETURN_IF_ERROR(open());
    GRADRAIL_RETURN_IF_ERROR(connect());
    GRADRAIL_ASSIGN_OR_RETURN(const transport::RemoteRegion peer, meet());
    GRADRAIL_RETURN_IF_ERROR(put(peer));
    GRADRAIL_RETURN_IF_ERROR(until([this] { return arrived_; }, "the put of the other end has not arrived"));
    GRADRAIL_RETURN_IF_ERROR(memory_->compare(first_ ? 2 : 1));
    result_ = {connection_->path(), connection_->uses_rdma()};
    // The end that closes first would take the other's put away.
    ++exchange_.arrived;
    return until([this] { return exchange_.arrived >= 2; }, "the other end is not done");
  }

  absl::Status wait_for_listener() {
    return until([this] { return !exchange_.hear(&PairExchange::address).empty(); }, "the other end does not listen");
  }

  absl::Status open() {
    GRADRAIL_ASSIGN_OR_RETURN(context_, options_.transport->open(options_.open));
    waits_.add(context_.get());
    GRADRAIL_ASSIGN_OR_RETURN(auto memory, options_.memory(*context_));
    memory_ = std::move(memory);
    GRADRAIL_RETURN_IF_ERROR(memory_->fill(first_ ? 1 : 2));
    GRADRAIL_ASSIGN_OR_RETURN(region_, context_->register_memory(memory_->span(), transport::Access::remote_write));
    exchange_.say(first_ ? &PairExchange::key_of_first : &PairExchange::key_of_second, region_->key());
    return absl::OkStatus();
  }

  absl::Status connect() {
    if (first_) {
      GRADRAIL_ASSIGN_OR_RETURN(const std::string address, context_->listen(options_.listen));
      exchange_.say(&PairExchange::address, address);
      return until([this] { return connection_ != nullptr; }, "the other end has not connected");
    }
    GRADRAIL_ASSIGN_OR_RETURN(transport::Connection* const made,
                              context_->connect(exchange_.hear(&PairExchange::address), deadline_));
    connection_ = made;
    return absl::OkStatus();
  }

  absl::StatusOr<transport::RemoteRegion> meet() {
    std::string PairExchange::*const key = first_ ? &PairExchange::key_of_second : &PairExchange::key_of_first;
    // The second end waits here as well: a key exists only after the other end has opened its context.
    const absl::Status met =
        until([&] { return !exchange_.hear(key).empty(); }, "the other end has registered no memory");
    if (!met.ok()) return met;
    return connection_->import(exchange_.hear(key));
  }

  absl::Status put(transport::RemoteRegion peer) {
    absl::Status status;
    const auto post = [&] {
      status = connection_->put({region_.get(), 0, kProofBytes}, {peer, kProofBytes}, {.immediate = 1});
      // A full send queue is not a failure: progress() frees it.
      return !absl::IsResourceExhausted(status);
    };
    GRADRAIL_RETURN_IF_ERROR(until(post, "the put cannot be posted"));
    return status;
  }

  template <typename Condition>
  absl::Status until(Condition&& met, const char* what) {
    while (!met()) {
      if (exchange_.failed) return absl::AbortedError("the other end failed");
      if (Clock::now() > deadline_) return absl::DeadlineExceededError(what);
      GRADRAIL_RETURN_IF_ERROR(progress());
    }
    return absl::OkStatus();
  }

  absl::Status progress() {
    std::array<Completion, 16> completions;
    const size_t count = waits_.wait(absl::MakeSpan(completions), Clock::now() + kTurn);
    for (size_t i = 0; i < count; ++i) {
      const Completion& each = completions[i];
      if (each.kind == Completion::Kind::connected) connection_ = each.connection;
      if (each.kind == Completion::Kind::put_arrived) arrived_ = true;
      // The other end is done, and so are we: it may go.
      if (each.kind == Completion::Kind::peer_lost && exchange_.arrived < 2) return each.cause;
    }
    return absl::OkStatus();
  }

  const PairOptions& options_;
  PairExchange& exchange_;
  const bool first_;
  const TimePoint deadline_;
  // In the order in which they are made; they end in the other.
  std::unique_ptr<ProofMemory> memory_;
  std::unique_ptr<transport::Context> context_;
  std::unique_ptr<transport::MemoryRegion> region_;
  transport::WaitSet waits_{transport::WaitPolicy{}};
  transport::Connection* connection_ = nullptr;
  bool arrived_ = false;
  PairResult result_;
};

}  // namespace

std::byte proof_pattern(uint32_t seed, size_t i) {
  return static_cast<std::byte>((i * 131 + (i >> 8) * 7 + seed * 29) & 0xff);
}

absl::Status compare_with_pattern(absl::Span<const std::byte> bytes, uint32_t seed) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == proof_pattern(seed, i)) continue;
    // The index states where a transfer was cut.
    return absl::DataLossError(fmt::format("byte {} of {} arrived wrong", i, bytes.size()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ProofMemory>> host_memory(const transport::Context& /*any takes it*/) {
  // SharedMemory: shm can map it, and each other transport takes it as common memory.
  GRADRAIL_ASSIGN_OR_RETURN(SharedMemory memory, SharedMemory::create("doctor", 2 * kProofBytes));
  return absl::StatusOr<std::unique_ptr<ProofMemory>>(std::make_unique<HostMemory>(std::move(memory)));
}

absl::StatusOr<PairResult> prove_pair(const PairOptions& options) {
  PairExchange exchange;
  absl::Status second_status;
  // A context belongs to the thread that opened it.
  GRADRAIL_ASSIGN_OR_RETURN(std::thread second, start_thread("of the other end", [&] {
                              End end(options, exchange, /*first=*/false);
                              second_status = end.run();
                            }));
  absl::Status status;
  PairResult result;
  {
    End end(options, exchange, /*first=*/true);
    status = end.run();
    result = end.result();
  }
  second.join();
  // "The other end failed" is not the reason.
  if (!status.ok() && !absl::IsAborted(status)) return status;
  if (!second_status.ok()) return second_status;
  if (!status.ok()) return status;
  return result;
}

}  // namespace gradrail::tools::doctor
