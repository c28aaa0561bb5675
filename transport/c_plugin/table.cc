#include "transport/c_plugin/table.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/status.h"
#include "fmt/format.h"

namespace gradrail::transport::c_plugin {
namespace {

/// Least size of a table: up to and with arm(), the last function of version 1.0.
constexpr size_t kMinTableBytes = offsetof(gradrail_transport_table, arm) + sizeof(&gradrail_transport_table::arm);

/// The first required function that is missing; "" if there is none.
std::string_view missing_function(const gradrail_transport_table& table) {
  const std::pair<std::string_view, bool> required[] = {
      {"open", table.open != nullptr},
      {"close", table.close != nullptr},
      {"capabilities", table.capabilities != nullptr},
      {"register_memory", table.register_memory != nullptr},
      {"deregister_memory", table.deregister_memory != nullptr},
      {"listen", table.listen != nullptr},
      {"connect", table.connect != nullptr},
      {"disconnect", table.disconnect != nullptr},
      {"import_region", table.import_region != nullptr},
      {"put", table.put != nullptr},
      {"get", table.get != nullptr},
      {"send", table.send != nullptr},
      {"poll", table.poll != nullptr},
      {"wait_fd", table.wait_fd != nullptr},
      {"arm", table.arm != nullptr},
  };
  for (const auto& [name, is_there] : required) {
    if (!is_there) return name;
  }
  return "";
}

bool is_known(int code) {
  switch (code) {
    case GRADRAIL_TRANSPORT_INVALID_ARGUMENT:
    case GRADRAIL_TRANSPORT_DEADLINE_EXCEEDED:
    case GRADRAIL_TRANSPORT_NOT_FOUND:
    case GRADRAIL_TRANSPORT_ALREADY_EXISTS:
    case GRADRAIL_TRANSPORT_PERMISSION_DENIED:
    case GRADRAIL_TRANSPORT_RESOURCE_EXHAUSTED:
    case GRADRAIL_TRANSPORT_FAILED_PRECONDITION:
    case GRADRAIL_TRANSPORT_UNIMPLEMENTED:
    case GRADRAIL_TRANSPORT_INTERNAL:
    case GRADRAIL_TRANSPORT_UNAVAILABLE:
    case GRADRAIL_TRANSPORT_DATA_LOSS:
      return true;
    default:
      return false;
  }
}

}  // namespace

std::string printable(std::string_view text) {
  std::string result(text);
  std::replace_if(
      result.begin(), result.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return result;
}

std::string printable(const gradrail_transport_text& text) {
  return printable(std::string_view(text.text, strnlen(text.text, sizeof(text.text))));
}

absl::StatusOr<Table> Table::read(std::string_view name, std::string_view file, const gradrail_transport_table& table) {
  if (table.table_bytes < kMinTableBytes) {
    return absl::FailedPreconditionError(
        fmt::format("{}: its table has {} bytes, but the table of version 1 has at least {}: set table_bytes to "
                    "sizeof(gradrail_transport_table) and rebuild the plug-in",
                    file, table.table_bytes, kMinTableBytes));
  }
  Table result;
  result.name_ = name;
  result.file_ = file;
  // The table of an older plug-in ends early, and a newer one has functions that are not known here.
  std::memcpy(&result.table_, &table, std::min(table.table_bytes, sizeof(table)));
  if (const std::string_view missing = missing_function(result.table_); !missing.empty()) {
    return absl::FailedPreconditionError(
        fmt::format("{}: its table has no function {}(): version 1 requires it (gradrail/transport.h)", file, missing));
  }
  return result;
}

std::string Table::library() const {
  const char* text = table_.library == nullptr ? nullptr : table_.library();
  return text == nullptr ? "" : printable(text);
}

absl::Status Table::status(std::string_view call, int code, const gradrail_transport_text& error) const {
  if (code == GRADRAIL_TRANSPORT_OK) return absl::OkStatus();
  return status(call, code, printable(error));
}

absl::Status Table::status(std::string_view call, int code, std::string_view error) const {
  if (code == GRADRAIL_TRANSPORT_OK) return absl::OkStatus();
  // A code outside the interface must not become an absl::StatusCode by the cast below.
  if (!is_known(code)) return defect(fmt::format("{} returned the unknown code {} ({})", call, code, error));
  const auto known = static_cast<absl::StatusCode>(code);
  if (!error.empty()) return {known, fmt::format("{}: {}", name_, error)};
  // A full queue is usual, so the plug-in need not write a text for it (plugin.h).
  if (known == absl::StatusCode::kResourceExhausted) return {known, fmt::format("{}: {}: queue full", name_, call)};
  return {known, fmt::format("{}: {} failed without a text (a defect of {})", name_, call, file_)};
}

absl::Status Table::defect(std::string_view text) const {
  return absl::InternalError(fmt::format("{}: defect of the plug-in {}: {}", name_, file_, text));
}

}  // namespace gradrail::transport::c_plugin
