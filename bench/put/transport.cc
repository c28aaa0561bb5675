#include "bench/put/transport.h"

#include <array>

#include "base/clock.h"
#include "base/memory.h"
#include "base/status.h"
#include "fmt/format.h"
#include "transport/registry.h"

namespace gradrail::bench {
namespace {

using transport::Completion;

constexpr Duration kConnectDeadline = std::chrono::seconds(30);

/// A context with one connection and one region: sources, then targets.
class TransportEnd final : public PutEnd {
 public:
  static absl::StatusOr<std::unique_ptr<PutEnd>> open(const PutTransport& transport, PairLink& link, size_t bytes) {
    auto end = std::unique_ptr<TransportEnd>(new TransportEnd(bytes));
    GRADRAIL_RETURN_IF_ERROR(end->open_context(transport));
    GRADRAIL_RETURN_IF_ERROR(end->connect(transport.bind_host, link));
    GRADRAIL_RETURN_IF_ERROR(end->exchange_keys(link));
    return absl::StatusOr<std::unique_ptr<PutEnd>>(std::move(end));
  }

  std::string path() const override { return connection_->path(); }
  std::byte* source(size_t slot) override { return memory_.data() + slot * bytes_; }
  const std::byte* target(size_t slot) const override { return memory_.data() + (kSlots + slot) * bytes_; }

  absl::StatusOr<bool> try_put(size_t slot, size_t bytes, std::optional<uint32_t> immediate) override {
    absl::Status status = connection_->put({region_.get(), slot * bytes_, bytes}, {peer_, (kSlots + slot) * bytes_},
                                           {.immediate = immediate});
    if (status.ok()) return true;
    // A full queue, not an error: the caller polls and tries again.
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

 private:
  explicit TransportEnd(size_t bytes) : bytes_(bytes) {}

  absl::Status open_context(const PutTransport& transport) {
    GRADRAIL_ASSIGN_OR_RETURN(const transport::Transport* const found, transport::find_transport(transport.name));
    GRADRAIL_ASSIGN_OR_RETURN(auto context, found->open({.bind_host = transport.bind_host,
                                                         .rdma_only = transport.rdma_only,
                                                         .ofi_provider = transport.ofi_provider}));
    context_ = std::move(context);
    // Sources and targets are distinct: an arriving put must not change bytes that a put of this end still reads.
    GRADRAIL_ASSIGN_OR_RETURN(auto memory, SharedMemory::create("bench_put", 2 * kSlots * bytes_));
    memory_ = std::move(memory);
    GRADRAIL_ASSIGN_OR_RETURN(auto region, context_->register_memory(memory_.span(), transport::Access::remote_write));
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
    GRADRAIL_ASSIGN_OR_RETURN(
        const std::string address,
        context_->listen(by_name ? "" : fmt::format("{}:0", bind_host.empty() ? "127.0.0.1" : bind_host)));
    GRADRAIL_RETURN_IF_ERROR(link.say(address));
    return progress_until([&] { return connection_ != nullptr; });
  }

  absl::Status exchange_keys(PairLink& link) {
    GRADRAIL_RETURN_IF_ERROR(link.say(region_->key()));
    // The context makes progress only in poll(), and the other end may need it for its own set-up.
    GRADRAIL_ASSIGN_OR_RETURN(const std::string key, link.hear([this] { turn_over().IgnoreError(); }));
    GRADRAIL_ASSIGN_OR_RETURN(peer_, connection_->import(key));
    return absl::OkStatus();
  }

  template <typename Condition>
  absl::Status progress_until(Condition&& met) {
    const TimePoint deadline = Clock::now() + kConnectDeadline;
    while (!met()) {
      GRADRAIL_RETURN_IF_ERROR(turn_over());
      if (Clock::now() > deadline) return absl::DeadlineExceededError("the other process did not connect");
    }
    return absl::OkStatus();
  }

  absl::Status turn_over() {
    std::array<uint32_t, kBatch> none{};
    return poll(absl::MakeSpan(none)).status();
  }

  const size_t bytes_;
  // In this order: the region is released before its context, and the memory last.
  SharedMemory memory_;
  std::unique_ptr<transport::Context> context_;
  std::unique_ptr<transport::MemoryRegion> region_;
  transport::Connection* connection_ = nullptr;
  transport::RemoteRegion peer_{};
  std::array<Completion, kBatch> completions_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PutEnd>> open_transport_end(const PutTransport& transport, PairLink& link,
                                                           size_t bytes) {
  return TransportEnd::open(transport, link, bytes);
}

}  // namespace gradrail::bench
