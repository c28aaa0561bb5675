#include "transport/c_plugin/context.h"

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "base/gpu_memory.h"
#include "base/log.h"
#include "base/status.h"
#include "fmt/format.h"
#include "transport/c_plugin/memory_region.h"

namespace gradrail::transport::c_plugin {
namespace {

/// The callers poll for at most so many.
constexpr size_t kMaxBatch = 64;

void log_text(int level, const char* text) {
  // Foreign code sets the level. Any thread of the plug-in may call this function.
  const int known = std::clamp(level, static_cast<int>(LogLevel::debug), static_cast<int>(LogLevel::error));
  write_log(static_cast<LogLevel>(known), text == nullptr ? "" : text);
}

absl::StatusOr<Capabilities> read_capabilities(const Table& table, const gradrail_transport_context* context) {
  gradrail_transport_capabilities found{};
  table->capabilities(context, &found);
  if (found.max_message_bytes < GRADRAIL_TRANSPORT_MIN_MESSAGE_BYTES) {
    return table.defect(fmt::format("max_message_bytes is {}, less than {}", found.max_message_bytes,
                                    GRADRAIL_TRANSPORT_MIN_MESSAGE_BYTES));
  }
  if (found.immediate_bits < GRADRAIL_TRANSPORT_MIN_IMMEDIATE_BITS || found.immediate_bits > 64) {
    return table.defect(
        fmt::format("immediate_bits is {}, not {} to 64", found.immediate_bits, GRADRAIL_TRANSPORT_MIN_IMMEDIATE_BITS));
  }
  if (found.direct_map != 0 && table->map == nullptr) return table.defect("direct_map is set, but there is no map()");
  Capabilities result = {.one_sided = found.one_sided != 0,
                         .direct_map = found.direct_map != 0,
                         .ordered_puts = found.ordered_puts != 0,
                         .max_message_bytes = found.max_message_bytes,
                         .immediate_bits = static_cast<int>(found.immediate_bits)};
  if (found.gpu_dma_buf != 0) result.gpu.why_no_dma_buf.clear();
  if (found.gpu_peer_memory != 0) result.gpu.why_no_peer_memory.clear();
  return result;
}

std::string_view kind_name(uint32_t kind) {
  constexpr std::string_view kNames[] = {"",        "CONNECTED", "PUT_DONE", "GET_DONE", "PUT_ARRIVED",
                                         "MESSAGE", "PEER_LOST"};
  return kind < std::size(kNames) ? kNames[kind] : "";
}

}  // namespace

absl::StatusOr<std::unique_ptr<Context>> open(const Table& table, const OpenOptions& options) {
  const gradrail_transport_options given = {
      .bind_host = options.bind_host.c_str(), .rdma_only = options.rdma_only ? 1 : 0, .log = &log_text};
  gradrail_transport_context* opened = nullptr;
  Text error;
  const int code = table->open(&given, &opened, &error);
  if (code != GRADRAIL_TRANSPORT_OK) return table.status("open", code, error);
  if (opened == nullptr) return table.defect("open returned OK without a context");
  // Every refusal from here on closes the context.
  PluginContext::Handle handle(opened, table->close);
  GRADRAIL_ASSIGN_OR_RETURN(const Capabilities capabilities, read_capabilities(table, opened));
  const int wait_fd = table->wait_fd(opened);
  // ppoll() ignores a negative descriptor: a waiting thread would miss every event.
  if (wait_fd < 0) return table.defect(fmt::format("wait_fd returned {}, which is not a descriptor", wait_fd));
  return std::make_unique<PluginContext>(table, std::move(handle), capabilities, wait_fd);
}

PluginContext::PluginContext(const Table& table, Handle handle, const Capabilities& capabilities, int wait_fd)
    : table_(table),
      handle_(std::move(handle)),
      capabilities_(capabilities),
      wait_fd_(wait_fd),
      batch_(kMaxBatch, gradrail_transport_completion{}) {}

PluginContext::~PluginContext() {
  // The end of a region calls the plug-in with this context, so regions end first.
  GRADRAIL_CHECK(region_count_ == 0);
  for (const auto& [handle, connection] : connections_) table_->disconnect(handle_.get(), handle);
}

absl::StatusOr<std::unique_ptr<MemoryRegion>> PluginContext::register_memory(MemorySpan memory, Access access) {
  GRADRAIL_RETURN_IF_ERROR(check_memory(table_.name(), memory, capabilities_.gpu));
  gradrail_transport_memory described = {.data = memory.data,
                                         .bytes = memory.bytes,
                                         .kind = GRADRAIL_TRANSPORT_HOST,
                                         .access = static_cast<uint32_t>(access),
                                         .fd = -1,
                                         .gpu = -1,
                                         .dma_buf_fd = -1};
  if (memory.kind == MemoryKind::host) {
    described.fd = memory.fd;
    return register_described(described, memory, access);
  }
  described.gpu = memory.gpu->ordinal();
  described.kind = GRADRAIL_TRANSPORT_GPU_PEER_MEMORY;
  if (memory.gpu->way() == NicGpuTransfer::peer_memory) return register_described(described, memory, access);
  // The descriptor is closed at the return, and the plug-in may use it during the call only (plugin.h).
  GRADRAIL_ASSIGN_OR_RETURN(const DmaBuf exported, memory.gpu->export_dma_buf(memory.data, memory.bytes));
  described.kind = GRADRAIL_TRANSPORT_GPU_DMA_BUF;
  described.dma_buf_fd = exported.fd.get();
  described.dma_buf_bytes = exported.bytes;
  described.dma_buf_offset = exported.offset;
  return register_described(described, memory, access);
}

absl::StatusOr<std::unique_ptr<MemoryRegion>> PluginContext::register_described(
    const gradrail_transport_memory& described, MemorySpan memory, Access access) {
  gradrail_transport_region* region = nullptr;
  gradrail_transport_key key;
  key.bytes = 0;
  Text error;
  const int code = table_->register_memory(handle_.get(), &described, &region, &key, &error);
  if (code != GRADRAIL_TRANSPORT_OK) return table_.status("register_memory", code, error);
  if (region == nullptr) return table_.defect("register_memory returned OK without a region");
  if (key.bytes == 0 || key.bytes > sizeof(key.data)) {
    // No PluginRegion exists that would end the registration.
    table_->deregister_memory(handle_.get(), region);
    return table_.defect(
        fmt::format("register_memory returned a key of {} bytes, not 1 to {}", key.bytes, sizeof(key.data)));
  }
  return std::make_unique<PluginRegion>(table_, handle_.get(), region, memory, access,
                                        std::string(reinterpret_cast<const char*>(key.data), key.bytes), region_count_);
}

absl::StatusOr<std::string> PluginContext::listen(const std::string& address) {
  if (listening_) return absl::FailedPreconditionError(fmt::format("{}: this context listens already", table_.name()));
  Text bound;
  Text error;
  const int code = table_->listen(handle_.get(), address.c_str(), &bound, &error);
  if (code != GRADRAIL_TRANSPORT_OK) return table_.status("listen", code, error);
  // The state is set also without a valid address: the plug-in does listen.
  listening_ = true;
  if (bound.text[0] == '\0') return table_.defect("listen returned OK without an address");
  return printable(bound);
}

absl::StatusOr<PluginConnection*> PluginContext::adopt(gradrail_transport_connection* handle, std::string_view call) {
  if (handle == nullptr) return table_.defect(fmt::format("{} returned no connection", call));
  auto& place = connections_[handle];
  // A second connection of one handle would end it twice.
  if (place != nullptr) return table_.defect(fmt::format("{} returned a connection that is already open", call));
  place = std::make_unique<PluginConnection>(table_, capabilities_, handle);
  return place.get();
}

absl::StatusOr<Connection*> PluginContext::connect(const std::string& address, TimePoint deadline) {
  // The context reports nothing but losses, so a new connection could never complete an operation.
  if (!defect_.ok()) return defect_;
  // timeout_ns has no sign: a deadline that has passed must not wrap.
  const Duration left = std::max(Duration::zero(), deadline - Clock::now());
  const auto timeout = std::chrono::duration_cast<std::chrono::nanoseconds>(left);
  gradrail_transport_connection* connection = nullptr;
  Text error;
  const int code =
      table_->connect(handle_.get(), address.c_str(), static_cast<uint64_t>(timeout.count()), &connection, &error);
  if (code != GRADRAIL_TRANSPORT_OK) return table_.status("connect", code, error);
  return adopt(connection, "connect");
}

void PluginContext::close(Connection* connection) {
  auto* const peer = static_cast<PluginConnection*>(connection);
  const auto place = connections_.find(peer->handle());
  GRADRAIL_CHECK(place != connections_.end() && place->second.get() == peer);
  table_->disconnect(handle_.get(), peer->handle());
  // No completion of a closed connection is reported (context.h).
  std::erase(losses_, peer);
  connections_.erase(place);
}

size_t PluginContext::poll(absl::Span<Completion> out) {
  if (!defect_.ok()) return report_losses(out);
  const size_t capacity = std::min(out.size(), batch_.size());
  const size_t count = table_->poll(handle_.get(), batch_.data(), capacity);
  // The number contradicts the batch, so none of its entries is used.
  if (count > capacity) {
    give_up(table_.defect(fmt::format("poll reported {} completions for room of {}", count, capacity)));
    return report_losses(out);
  }
  size_t converted = 0;
  while (converted < count) {
    out[converted] = {};
    if (absl::Status broken = convert(batch_[converted], out[converted]); !broken.ok()) {
      // The completions before the defect are valid, and the caller receives them.
      give_up(std::move(broken));
      return converted + report_losses(out.subspan(converted));
    }
    ++converted;
  }
  // The plug-in receives zeroed entries at each poll (plugin.h).
  std::fill_n(batch_.begin(), count, gradrail_transport_completion{});
  return converted;
}

absl::StatusOr<PluginConnection*> PluginContext::find(const gradrail_transport_completion& completion) const {
  const auto found = connections_.find(completion.connection);
  const std::string_view kind = kind_name(completion.kind);
  if (found == connections_.end()) {
    return table_.defect(fmt::format("poll reported {} of a connection that is not open", kind));
  }
  // PEER_LOST is the last completion of a connection.
  if (found->second->lost()) return table_.defect(fmt::format("poll reported {} after PEER_LOST", kind));
  return found->second.get();
}

absl::Status PluginContext::convert(const gradrail_transport_completion& from, Completion& to) {
  if (kind_name(from.kind).empty()) {
    return table_.defect(fmt::format("poll reported a completion of the unknown kind {}", from.kind));
  }
  GRADRAIL_ASSIGN_OR_RETURN(PluginConnection* const connection, from.kind == GRADRAIL_TRANSPORT_CONNECTED
                                                                    ? adopt(from.connection, "poll: CONNECTED")
                                                                    : find(from));
  to.connection = connection;
  switch (from.kind) {
    case GRADRAIL_TRANSPORT_CONNECTED:
      to.kind = Completion::Kind::connected;
      return absl::OkStatus();
    case GRADRAIL_TRANSPORT_PUT_DONE:
    case GRADRAIL_TRANSPORT_GET_DONE: {
      const bool is_get = from.kind == GRADRAIL_TRANSPORT_GET_DONE;
      to.kind = is_get ? Completion::Kind::get_done : Completion::Kind::put_done;
      const absl::StatusOr<uint64_t> tag = connection->take_tag(from.operation, is_get);
      if (!tag.ok()) return table_.defect(fmt::format("poll: {}: {}", kind_name(from.kind), message_of(tag.status())));
      to.tag = *tag;
      return absl::OkStatus();
    }
    case GRADRAIL_TRANSPORT_PUT_ARRIVED:
      to.kind = Completion::Kind::put_arrived;
      to.immediate = from.immediate;
      return absl::OkStatus();
    case GRADRAIL_TRANSPORT_MESSAGE:
      if (from.message_bytes > capabilities_.max_message_bytes || (from.message == nullptr && from.message_bytes > 0)) {
        return table_.defect(fmt::format("poll reported a message of {} bytes at {}, max_message_bytes is {}",
                                         from.message_bytes, from.message, capabilities_.max_message_bytes));
      }
      to.kind = Completion::Kind::message;
      to.message = {static_cast<const std::byte*>(from.message), from.message_bytes};
      return absl::OkStatus();
    default:
      to.kind = Completion::Kind::peer_lost;
      to.cause = cause_of_loss(from);
      connection->lose(to.cause);
      return absl::OkStatus();
  }
}

absl::Status PluginContext::cause_of_loss(const gradrail_transport_completion& completion) const {
  const std::string text = completion.cause_text == nullptr ? "" : printable(completion.cause_text);
  if (completion.cause != GRADRAIL_TRANSPORT_OK) return table_.status("PEER_LOST", completion.cause, text);
  return table_.defect(fmt::format("poll reported PEER_LOST with the cause OK ({})", text));
}

void PluginContext::give_up(absl::Status defect) {
  GRADRAIL_CHECK(defect_.ok() && losses_.empty());  // invariant 2: one defect
  log_error("{}; its {} connections are lost", message_of(defect), connections_.size());
  for (const auto& [handle, connection] : connections_) {
    // The loss of this connection has been reported.
    if (connection->lost()) continue;
    connection->lose(defect);
    losses_.push_back(connection.get());
  }
  defect_ = std::move(defect);
}

size_t PluginContext::report_losses(absl::Span<Completion> out) {
  size_t count = 0;
  for (; count < out.size() && !losses_.empty(); ++count, losses_.pop_front()) {
    out[count] = {.kind = Completion::Kind::peer_lost, .connection = losses_.front(), .cause = defect_};
  }
  return count;
}

// The plug-in is not called any more after a defect (invariant 2).
bool PluginContext::arm() { return defect_.ok() ? table_->arm(handle_.get()) != 0 : losses_.empty(); }

}  // namespace gradrail::transport::c_plugin
