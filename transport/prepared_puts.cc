#include "transport/prepared_puts.h"

#include "base/check.h"
#include "base/status.h"

namespace gradrail::transport {
namespace {

/// For a transport that has nothing to prepare.
class UncheckedPuts final : public PreparedPuts {
 public:
  UncheckedPuts(Connection& connection, absl::Span<const Transfer> puts, uint64_t immediate)
      : connection_(connection), puts_(puts.begin(), puts.end()), immediate_(immediate) {}

  absl::Status post(size_t& posted) override { return post_each(connection_, puts_, immediate_, posted); }

 private:
  Connection& connection_;
  const absl::InlinedVector<Transfer, 2> puts_;
  const uint64_t immediate_;
};

}  // namespace

absl::Status post_each(Connection& connection, absl::Span<const Transfer> puts, uint64_t immediate, size_t& posted) {
  GRADRAIL_CHECK(posted < puts.size());
  for (; posted < puts.size(); ++posted) {
    PutOptions options;
    if (posted + 1 == puts.size()) options.immediate = immediate;
    GRADRAIL_RETURN_IF_ERROR(connection.put(puts[posted].source, puts[posted].target, options));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<PreparedPuts>> Connection::prepare(absl::Span<const Transfer> puts, uint64_t immediate) {
  GRADRAIL_CHECK(!puts.empty());
  return std::make_unique<UncheckedPuts>(*this, puts, immediate);
}

}  // namespace gradrail::transport
