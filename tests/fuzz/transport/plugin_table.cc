// The table of a third party's plug-in: its size, missing functions, codes and texts.
#include <cstring>
#include <memory>
#include <string>

#include "base/check.h"
#include "base/status.h"
#include "tests/fuzz/fuzz.h"
#include "transport/c_plugin/table.h"
#include "transport/common/byte_codec.h"

namespace gradrail::transport::c_plugin {
namespace {

constexpr char kFile[] = "/opt/libgradrail_transport_x.so";
constexpr size_t kPointerBytes = sizeof(void (*)());

void try_table(common::ByteReader& in) {
  const size_t claimed = in.number<uint16_t>() % (sizeof(gradrail_transport_table) + 64);
  const auto present = in.number<uint64_t>();
  // The sanitizer finds a read behind the end of a table that is shorter than this program's. A longer one has
  // functions that are not known here.
  const size_t bytes = std::max(claimed, sizeof(size_t));
  const auto memory = std::make_unique<uint64_t[]>((bytes + 7) / 8);
  auto* const raw = reinterpret_cast<char*>(memory.get());
  for (size_t at = sizeof(size_t); at + kPointerBytes <= bytes; at += kPointerBytes) {
    const bool is_there = (present >> (at / kPointerBytes % 64) & 1) != 0;
    std::memset(raw + at, is_there ? 1 : 0, kPointerBytes);
  }
  std::memcpy(raw, &claimed, sizeof(claimed));
  const absl::StatusOr<Table> table =
      Table::read("x", kFile, *reinterpret_cast<const gradrail_transport_table*>(memory.get()));
  if (!table.ok()) return fuzz::check_refusal(table.status(), absl::StatusCode::kFailedPrecondition, kFile);
  GRADRAIL_CHECK((*table)->open != nullptr && (*table)->poll != nullptr && (*table)->arm != nullptr);
  GRADRAIL_CHECK((*table)->put != nullptr && (*table)->import_region != nullptr && (*table)->wait_fd != nullptr);
}

Table whole_table() {
  gradrail_transport_table raw;
  std::memset(static_cast<void*>(&raw), 1, sizeof(raw));
  raw.table_bytes = sizeof(raw);
  raw.library = nullptr;
  return *Table::read("x", kFile, raw);
}

void try_result(common::ByteReader& in) {
  static const Table table = whole_table();
  const auto code = static_cast<int>(in.number<uint32_t>());
  Text text;
  // Without a NUL where the input fills the buffer.
  const std::string_view words = in.rest();
  words.copy(text.text, sizeof(text.text));
  if (words.size() < sizeof(text.text)) text.text[words.size()] = '\0';
  const absl::Status status = table.status("put", code, text);
  GRADRAIL_CHECK(status.ok() == (code == GRADRAIL_TRANSPORT_OK));
  if (status.ok()) return;
  GRADRAIL_CHECK(static_cast<int>(status.code()) == code || absl::IsInternal(status));
  GRADRAIL_CHECK(fuzz::is_printable(message_of(status)) && message_of(status).starts_with("x: "));
}

}  // namespace
}  // namespace gradrail::transport::c_plugin

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace gradrail::transport;
  common::ByteReader in(gradrail::fuzz::text_of(data, bytes));
  c_plugin::try_table(in);
  c_plugin::try_result(in);
  return 0;
}
