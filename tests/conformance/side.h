#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/memory.h"
#include "conformance/channel.h"
#include "transport/registry.h"
#include "transport/wait_set.h"

namespace gradrail::conformance {

using transport::Access;
using transport::Completion;
using transport::Connection;
using transport::LocalSlice;
using transport::MemoryRegion;
using transport::RemoteRegion;
using Kind = transport::Completion::Kind;

/// A completion that outlives the next poll.
struct Event {
  Kind kind = Kind::connected;
  Connection* connection = nullptr;
  uint64_t tag = 0;
  uint64_t immediate = 0;
  std::string message;
  absl::Status cause;
};

/// Registered memory of a Side.
struct Buffer {
  SharedMemory memory;
  std::unique_ptr<MemoryRegion> region;
  std::byte* data() const { return memory.data(); }
  size_t bytes() const { return memory.bytes(); }
  const std::string& key() const { return region->key(); }
  LocalSlice slice(size_t offset, size_t bytes) const { return {region.get(), offset, bytes}; }
  LocalSlice all() const { return {region.get(), 0, bytes()}; }
};

/// An open transport with its memory, and a log of what has happened on it that no await has taken yet.
class Side {
 public:
  explicit Side(const transport::Transport& transport);
  ~Side();

  transport::Context& context() { return *context_; }
  const transport::Transport& transport() const { return transport_; }

  // The results of these functions are valid; the functions throw Broken.
  std::string listen();
  Connection* connect(const std::string& address);
  Connection* accept();
  Buffer& buffer(size_t bytes, Access access);
  void release(Buffer& buffer);
  void close(Connection* connection);

  /// Posts, polling for as long as the answer is RESOURCE_EXHAUSTED.
  absl::Status post(const std::function<absl::Status()>& operation);
  void must_post(const std::function<absl::Status()>& operation);
  void put(Connection* to, LocalSlice source, transport::RemoteSlice target, transport::PutOptions options = {});
  void send(Connection* to, std::string_view message);

  /// Takes the oldest event of this kind (and connection) out of the log, waiting for it. Throws Broken.
  Event await(Kind kind, const Connection* connection = nullptr, Duration longest = timeout());
  std::optional<Event> try_await(Kind kind, const Connection* connection, Duration longest);
  void await_that(const std::function<bool()>& predicate, const char* what);
  bool has(Kind kind, const Connection* connection = nullptr) const;
  /// Answers the transport's needs until the side channel says something, and returns that.
  std::string serve_until_stopped(Channel& channel);
  /// One poll without blocking.
  void poll();
  /// Collects what comes, for at most this long.
  void wait_a_little();
  const std::deque<Event>& log() const { return log_; }

 private:
  void collect(absl::Span<const Completion> completions);

  const transport::Transport& transport_;
  // Order of destruction: connections (by hand), regions, context.
  std::unique_ptr<transport::Context> context_;
  std::deque<Buffer> buffers_;
  std::vector<Connection*> connections_;
  std::deque<Event> log_;
  transport::WaitSet waits_;
};

absl::Span<const std::byte> bytes_of(std::string_view text);

}  // namespace gradrail::conformance
