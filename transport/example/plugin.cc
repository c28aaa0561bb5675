// A transport in a shared object of its own: tcp with counters of its operations, printed at the end. A real transport
// implements Context and Connection over its device where this one forwards the calls. The entry point is the same.
#include "transport/plugin.h"

#include <cstdint>
#include <map>

#include "base/status.h"
#include "spdlog/spdlog.h"
#include "transport/tcp/context.h"

namespace gradrail::transport::example {
namespace {

struct Counts {
  uint64_t puts = 0;
  uint64_t put_bytes = 0;
  uint64_t gets = 0;
  uint64_t messages = 0;
};

class CountingConnection final : public Connection {
 public:
  CountingConnection(Connection& inner, Counts& counts) : inner_(inner), counts_(counts) {
    inner_.set_user_data(reinterpret_cast<uint64_t>(this));
  }

  absl::StatusOr<RemoteRegion> import(std::string_view key) override { return inner_.import(key); }

  absl::Status put(LocalSlice source, RemoteSlice target, PutOptions options) override {
    absl::Status posted = inner_.put(source, target, options);
    if (posted.ok()) {
      ++counts_.puts;
      counts_.put_bytes += source.bytes;
    }
    return posted;
  }

  absl::Status get(LocalSlice target, RemoteSlice source, uint64_t tag) override {
    absl::Status posted = inner_.get(target, source, tag);
    if (posted.ok()) ++counts_.gets;
    return posted;
  }

  absl::Status send(absl::Span<const std::byte> message) override {
    absl::Status posted = inner_.send(message);
    if (posted.ok()) ++counts_.messages;
    return posted;
  }

  absl::StatusOr<std::byte*> map(RemoteRegion region) override { return inner_.map(region); }
  std::string describe() const override { return "example " + inner_.describe(); }
  Connection& inner() { return inner_; }

 private:
  Connection& inner_;
  Counts& counts_;
};

class CountingContext final : public Context {
 public:
  explicit CountingContext(std::unique_ptr<Context> inner) : inner_(std::move(inner)) {}
  ~CountingContext() override {
    spdlog::info("example: {} puts of {} bytes, {} gets, {} messages", counts_.puts, counts_.put_bytes, counts_.gets,
                 counts_.messages);
  }

  std::string_view name() const override { return "example"; }
  Capabilities capabilities() const override { return inner_->capabilities(); }
  absl::StatusOr<std::unique_ptr<MemoryRegion>> register_memory(MemorySpan memory, Access access) override {
    return inner_->register_memory(memory, access);
  }
  absl::StatusOr<std::string> listen(const std::string& address) override { return inner_->listen(address); }

  absl::StatusOr<Connection*> connect(const std::string& address, TimePoint deadline) override {
    const absl::StatusOr<Connection*> connected = inner_->connect(address, deadline);
    if (!connected.ok()) return connected.status();
    return adopt(*connected);
  }

  void close(Connection* connection) override {
    Connection* inner = &static_cast<CountingConnection*>(connection)->inner();
    inner_->close(inner);
    connections_.erase(inner);
  }

  size_t poll(absl::Span<Completion> out) override {
    const size_t count = inner_->poll(out);
    for (Completion& completion : out.first(count)) {
      completion.connection = completion.kind == Completion::Kind::connected
                                  ? adopt(completion.connection)
                                  : reinterpret_cast<CountingConnection*>(completion.connection->user_data());
    }
    return count;
  }

  int wait_fd() const override { return inner_->wait_fd(); }
  bool arm() override { return inner_->arm(); }

 private:
  Connection* adopt(Connection* inner) {
    return (connections_[inner] = std::make_unique<CountingConnection>(*inner, counts_)).get();
  }

  std::unique_ptr<Context> inner_;
  Counts counts_;
  std::map<Connection*, std::unique_ptr<CountingConnection>> connections_;
};

absl::StatusOr<std::unique_ptr<Context>> open(const OpenOptions& options) {
  absl::StatusOr<std::unique_ptr<Context>> inner = tcp::open(options);
  if (!inner.ok()) return inner.status();
  return std::make_unique<CountingContext>(*std::move(inner));
}

constexpr Plugin kPlugin{.library = "an example over tcp", .open = open};

}  // namespace
}  // namespace gradrail::transport::example

GRADRAIL_PLUGIN_EXPORT const gradrail::transport::Plugin* gradrail_transport_plugin() {
  return &gradrail::transport::example::kPlugin;
}
