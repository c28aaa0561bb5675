#include "bench/put/transport.h"

#include <unistd.h>

#include <array>

#include "base/memory.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gradrail/clock.h"
#include "transport/registry.h"

namespace gradrail::bench {
namespace {

using transport::Completion;

constexpr Duration kConnectDeadline = std::chrono::seconds(30);
// A put takes less than 1 ms; the other process may wait for a core.
constexpr Duration kProofDeadline = std::chrono::seconds(20);

class HostMemory final : public PutMemory {
 public:
  explicit HostMemory(SharedMemory memory) : memory_(std::move(memory)) {}
  MemorySpan span() const override { return memory_.span(); }
  std::byte* host() override { return memory_.data(); }

 private:
  SharedMemory memory_;
};

/// A context with one connection and one region: sources, then targets.
class TransportEnd final : public PutEnd {
 public:
  static absl::StatusOr<std::unique_ptr<TransportEnd>> open(const PutTransport& transport, PairLink& link,
                                                            size_t bytes) {
    auto end = std::unique_ptr<TransportEnd>(new TransportEnd(bytes));
    if (absl::Status status = end->open_all(transport, link); !status.ok()) {
      link.say_failure(status);
      return status;
    }
    return end;
  }

  std::string path() const override { return connection_->path(); }
  std::byte* source(size_t slot) override { return host_ + slot * bytes_; }
  const std::byte* target(size_t slot) const override { return host_ + (kSlots + slot) * bytes_; }

  absl::StatusOr<bool> try_put(size_t slot, size_t bytes, std::optional<uint32_t> immediate) override {
    absl::Status status = connection_->put({region_.get(), slot * bytes_, bytes}, {peer_, (kSlots + slot) * bytes_},
                                           {.immediate = immediate});
    if (status.ok()) return true;
    // A full queue is not an error: the caller polls and repeats the call.
    if (absl::IsResourceExhausted(status)) return false;
    return status;
  }

  absl::StatusOr<size_t> poll(absl::Span<uint32_t> arrived) override {
    const size_t count = context_->poll(absl::MakeSpan(completions_));
    size_t notices = 0;
    for (size_t i = 0; i < count; ++i) {
      const Completion& completion = completions_[i];
      if (completion.kind == Completion::Kind::put_arrived) {
        arrived[notices++] = static_cast<uint32_t>(completion.immediate);
      } else if (completion.kind == Completion::Kind::peer_lost) {
        return completion.cause;
      } else if (completion.kind == Completion::Kind::connected) {
        connection_ = completion.connection;
      }
    }
    return notices;
  }

  absl::StatusOr<ProvenPath> prove(PairLink& link) {
    if (absl::Status status = exchange_pattern(link); !status.ok()) {
      link.say_failure(status);
      return status;
    }
    return ProvenPath{connection_->path(), connection_->uses_rdma()};
  }

 private:
  explicit TransportEnd(size_t bytes) : bytes_(bytes) {}

  absl::Status open_all(const PutTransport& transport, PairLink& link) {
    GRADRAIL_RETURN_IF_ERROR(open_context(transport));
    GRADRAIL_RETURN_IF_ERROR(connect(transport.bind_host, link));
    return exchange_keys(link);
  }

  absl::Status open_context(const PutTransport& transport) {
    GRADRAIL_ASSIGN_OR_RETURN(const transport::Transport* const found, transport::find_transport(transport.name));
    GRADRAIL_ASSIGN_OR_RETURN(auto context, found->open({.bind_host = transport.bind_host,
                                                         .rdma_only = transport.rdma_only,
                                                         .ofi_provider = transport.ofi_provider}));
    context_ = std::move(context);
    // Sources and targets are distinct: an arriving put must not change bytes that a put of this end still reads.
    GRADRAIL_ASSIGN_OR_RETURN(memory_, transport.memory(*context_, 2 * kSlots * bytes_));
    host_ = memory_->host();
    GRADRAIL_ASSIGN_OR_RETURN(auto region, context_->register_memory(memory_->span(), transport::Access::remote_write));
    region_ = std::move(region);
    return absl::OkStatus();
  }

  absl::Status connect(const std::string& bind_host, PairLink& link) {
    if (link.leads()) {
      GRADRAIL_ASSIGN_OR_RETURN(const std::string address, link.hear([] {}));
      GRADRAIL_ASSIGN_OR_RETURN(transport::Connection* const made,
                                context_->connect(address, Clock::now() + kConnectDeadline));
      connection_ = made;
      return absl::OkStatus();
    }
    // shm has names instead of hosts and ports.
    const bool by_name = context_->name() == "shm";
    const std::string host = bind_host.empty() ? "127.0.0.1" : bind_host;
    const char* const form = host.find(':') == std::string::npos ? "{}:0" : "[{}]:0";
    GRADRAIL_ASSIGN_OR_RETURN(const std::string address,
                              context_->listen(by_name ? "" : fmt::format(fmt::runtime(form), host)));
    GRADRAIL_RETURN_IF_ERROR(link.say(address));
    return progress_until([&] { return connection_ != nullptr; }, kConnectDeadline,
                          "the other process did not connect");
  }

  absl::Status exchange_keys(PairLink& link) {
    GRADRAIL_RETURN_IF_ERROR(link.say(region_->key()));
    // The context makes progress only in poll(), and the other end may need it for its own set-up.
    GRADRAIL_ASSIGN_OR_RETURN(const std::string key, link.hear([this] { turn_over().IgnoreError(); }));
    GRADRAIL_ASSIGN_OR_RETURN(peer_, connection_->import(key));
    return absl::OkStatus();
  }

  absl::Status exchange_pattern(PairLink& link) {
    const uint32_t seed = link.leads() ? 1 : 2, other_seed = 3 - seed;
    std::byte* const target_bytes = host_ + kSlots * bytes_;
    for (size_t i = 0; i < bytes_; ++i) {
      source(0)[i] = pattern_byte(seed, i);
      // The complement of the pattern that is due: without a put, each byte differs.
      target_bytes[i] = ~pattern_byte(other_seed, i);
    }
    GRADRAIL_RETURN_IF_ERROR(memory_->upload());
    arrived_ = 0;
    GRADRAIL_RETURN_IF_ERROR(meet(link, "filled"));
    bool posted = false;
    const auto has_posted = [&]() -> absl::StatusOr<bool> {
      if (posted) return true;
      GRADRAIL_ASSIGN_OR_RETURN(posted, try_put(0, bytes_, /*immediate=*/1));
      return posted;
    };
    GRADRAIL_RETURN_IF_ERROR(progress_until(has_posted, kProofDeadline, "the put cannot be posted"));
    GRADRAIL_RETURN_IF_ERROR(progress_until([this] { return arrived_ > 0; }, kProofDeadline,
                                            "the put of the other process has not arrived"));
    GRADRAIL_RETURN_IF_ERROR(memory_->download());
    for (size_t i = 0; i < bytes_; ++i) {
      // The index states where a transfer was cut.
      if (target(0)[i] != pattern_byte(other_seed, i))
        return absl::DataLossError(fmt::format("byte {} of {} arrived wrong", i, bytes_));
    }
    // The end that closes first would take away the put of the other.
    return meet(link, "compared");
  }

  /// Waits until the other process has reached the same step.
  absl::Status meet(PairLink& link, const std::string& step) {
    GRADRAIL_RETURN_IF_ERROR(link.say(step));
    return link.hear([this] { turn_over().IgnoreError(); }).status();
  }

  template <typename Condition>
  absl::Status progress_until(Condition&& met, Duration timeout, const char* what) {
    const TimePoint deadline = Clock::now() + timeout;
    while (true) {
      GRADRAIL_ASSIGN_OR_RETURN(const bool done, absl::StatusOr<bool>(met()));
      if (done) return absl::OkStatus();
      GRADRAIL_RETURN_IF_ERROR(turn_over());
      if (Clock::now() > deadline) return absl::DeadlineExceededError(what);
    }
  }

  absl::Status turn_over() {
    std::array<uint32_t, kBatch> notices{};
    GRADRAIL_ASSIGN_OR_RETURN(const size_t count, poll(absl::MakeSpan(notices)));
    arrived_ += count;
    return absl::OkStatus();
  }

  const size_t bytes_;
  // The order matters: the region is released before its context, and the memory last.
  std::unique_ptr<PutMemory> memory_;
  std::byte* host_ = nullptr;  ///< its bytes: the loops of the measurement call no virtual function for them
  std::unique_ptr<transport::Context> context_;
  std::unique_ptr<transport::MemoryRegion> region_;
  transport::Connection* connection_ = nullptr;
  transport::RemoteRegion peer_{};
  size_t arrived_ = 0;  ///< notices that turn_over() has polled
  std::array<Completion, kBatch> completions_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PutEnd>> open_transport_end(const PutTransport& transport, PairLink& link,
                                                           size_t bytes) {
  return TransportEnd::open(transport, link, bytes);
}

absl::StatusOr<std::unique_ptr<PutMemory>> host_memory(const transport::Context& /*any takes it*/, size_t bytes) {
  // SharedMemory: shm can map it, and each other transport takes it as common memory.
  GRADRAIL_ASSIGN_OR_RETURN(SharedMemory memory, SharedMemory::create("bench_put", bytes));
  return absl::StatusOr<std::unique_ptr<PutMemory>>(std::make_unique<HostMemory>(std::move(memory)));
}

absl::StatusOr<ProvenPath> prove_puts(const PutTransport& transport, size_t bytes) {
  GRADRAIL_ASSIGN_OR_RETURN(PairLink link, PairLink::fork_two());
  const auto prove = [&]() -> absl::StatusOr<ProvenPath> {
    GRADRAIL_ASSIGN_OR_RETURN(const std::unique_ptr<TransportEnd> end, TransportEnd::open(transport, link, bytes));
    return end->prove(link);
  };
  absl::StatusOr<ProvenPath> proven = prove();
  // _exit(): the child has copies of the output buffers and exit handlers of its parent.
  if (!link.leads()) _exit(0);
  // Libraries of the other process may have files to remove before the end of this process ends it.
  if (proven.ok()) link.hear([] {}).status().IgnoreError();
  return proven;
}

std::byte pattern_byte(uint32_t seed, size_t i) {
  return static_cast<std::byte>((i * 131 + (i >> 8) * 7 + seed * 29) & 0xff);
}

}  // namespace gradrail::bench
