#include "transport/c_plugin/connection.h"

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "transport/c_plugin/memory_region.h"
#include "transport/common/slice.h"

namespace gradrail::transport::c_plugin {
namespace {

gradrail_transport_region* handle_of(const LocalSlice& slice) {
  if (slice.bytes == 0) return nullptr;
  GRADRAIL_CHECK(slice.region != nullptr);  // check_local() refuses bytes of no region
  return static_cast<const PluginRegion*>(slice.region)->handle();
}

}  // namespace

absl::Status PluginConnection::check_post() const {
  if (!lost()) return absl::OkStatus();
  return absl::UnavailableError(cause_.message());
}

absl::StatusOr<uint64_t> PluginConnection::remote(RemoteRegion region) const {
  const auto number = static_cast<uint32_t>(region);
  if (number != 0 && number <= imported_.size()) return imported_[number - 1];
  return absl::InvalidArgumentError(fmt::format("{}: not an imported region", table_.name()));
}

absl::StatusOr<RemoteRegion> PluginConnection::import(std::string_view key) {
  if (key.empty() || key.size() > GRADRAIL_TRANSPORT_KEY_BYTES) {
    return absl::InvalidArgumentError(fmt::format("{}: a region key has 1 to {} bytes, not {}", table_.name(),
                                                  GRADRAIL_TRANSPORT_KEY_BYTES, key.size()));
  }
  uint64_t region = 0;
  Text error;
  const int code = table_->import_region(handle_, key.data(), key.size(), &region, &error);
  if (code != GRADRAIL_TRANSPORT_OK) return table_.status("import_region", code, error);
  imported_.push_back(region);
  return static_cast<RemoteRegion>(imported_.size());
}

absl::Status PluginConnection::put(LocalSlice source, RemoteSlice target, PutOptions options) {
  GRADRAIL_RETURN_IF_ERROR(check_post());
  GRADRAIL_RETURN_IF_ERROR(common::check_local(table_.name(), source));
  gradrail_transport_put put{};
  // A put of 0 bytes may name a region, which then must be an imported one.
  const bool has_target = target.region != RemoteRegion{} || source.bytes > 0;
  if (has_target) {
    GRADRAIL_ASSIGN_OR_RETURN(put.target_region, remote(target.region));
    put.target_offset = target.offset;
  }
  put.source = handle_of(source);
  put.source_offset = source.offset;
  put.bytes = source.bytes;
  put.notify = options.immediate.has_value() ? 1 : 0;
  // The plug-in may rely on an immediate within immediate_bits (plugin.h). read_capabilities() keeps the shift below
  // 64.
  const int unused_bits = 64 - capabilities_.immediate_bits;
  GRADRAIL_CHECK(unused_bits >= 0 && unused_bits < 64);
  put.immediate = options.immediate.value_or(0) << unused_bits >> unused_bits;
  if (options.tag != 0) {
    // Tags of the caller may repeat. These numbers never do, so a completion of an unknown operation is detected.
    put.operation = ++last_operation_;
    outstanding_[put.operation] = {.tag = options.tag};
  }
  Text error;
  return posted("put", table_->put(handle_, &put, &error), error, put.operation);
}

absl::Status PluginConnection::get(LocalSlice target, RemoteSlice source, uint64_t tag) {
  GRADRAIL_RETURN_IF_ERROR(check_post());
  GRADRAIL_RETURN_IF_ERROR(common::check_local(table_.name(), target));
  GRADRAIL_ASSIGN_OR_RETURN(const uint64_t region, remote(source.region));
  const gradrail_transport_get get = {.target = handle_of(target),
                                      .target_offset = target.offset,
                                      .bytes = target.bytes,
                                      .source_region = region,
                                      .source_offset = source.offset,
                                      .operation = ++last_operation_};
  outstanding_[get.operation] = {.tag = tag, .is_get = true};
  Text error;
  return posted("get", table_->get(handle_, &get, &error), error, get.operation);
}

absl::Status PluginConnection::posted(std::string_view call, int code, const gradrail_transport_text& error,
                                      uint64_t operation) {
  if (code == GRADRAIL_TRANSPORT_OK) return absl::OkStatus();
  // A refused post never completes. Number 0, of a put without a tag, is never in the map.
  outstanding_.erase(operation);
  return table_.status(call, code, error);
}

absl::Status PluginConnection::send(absl::Span<const std::byte> message) {
  if (message.size() > capabilities_.max_message_bytes) {
    return absl::InvalidArgumentError(fmt::format("{}: message of {} bytes, more than {}", table_.name(),
                                                  message.size(), capabilities_.max_message_bytes));
  }
  GRADRAIL_RETURN_IF_ERROR(check_post());
  Text error;
  return table_.status("send", table_->send(handle_, message.data(), message.size(), &error), error);
}

absl::StatusOr<std::byte*> PluginConnection::map(RemoteRegion region) {
  if (!capabilities_.direct_map) {
    return absl::UnimplementedError(fmt::format("{} cannot map a peer's memory", table_.name()));
  }
  GRADRAIL_RETURN_IF_ERROR(check_post());
  GRADRAIL_ASSIGN_OR_RETURN(const uint64_t number, remote(region));
  void* address = nullptr;
  Text error;
  const int code = table_->map(handle_, number, &address, &error);
  if (code != GRADRAIL_TRANSPORT_OK) return table_.status("map", code, error);
  if (address == nullptr) return table_.defect("map returned OK without an address");
  return static_cast<std::byte*>(address);
}

std::string PluginConnection::describe() const {
  Text text;
  if (table_->describe != nullptr) table_->describe(handle_, &text);
  return fmt::format("{} {}", table_.name(), text.text[0] == '\0' ? "connection" : printable(text));
}

std::string PluginConnection::path() const {
  Text text;
  if (table_->device != nullptr) table_->device(handle_, &text);
  return text.text[0] == '\0' ? table_.name() : fmt::format("{} {}", table_.name(), printable(text));
}

bool PluginConnection::uses_rdma() const { return table_->uses_rdma != nullptr && table_->uses_rdma(handle_) != 0; }

absl::StatusOr<uint64_t> PluginConnection::take_tag(uint64_t operation, bool is_get) {
  const auto found = outstanding_.find(operation);
  if (found == outstanding_.end() || found->second.is_get != is_get) {
    return absl::NotFoundError(
        fmt::format("operation {} is no {} that is outstanding", operation, is_get ? "get" : "put"));
  }
  const uint64_t tag = found->second.tag;
  outstanding_.erase(found);
  return tag;
}

}  // namespace gradrail::transport::c_plugin
