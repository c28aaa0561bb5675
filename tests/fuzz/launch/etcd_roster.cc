// The keys of a job in etcd: each line of an input is a key, a space and its value. The first line is an address.
#include "base/check.h"
#include "base/status.h"
#include "launch/etcd/rendezvous_url.h"
#include "launch/etcd/roster.h"
#include "ps/protocol/cluster_spec.h"
#include "tests/fuzz/fuzz.h"

namespace gradrail::launch {
namespace {

void try_url(std::string_view text) {
  const absl::StatusOr<RendezvousUrl> url = parse_rendezvous(text);
  if (!url.ok()) return fuzz::check_refusal(url.status(), absl::StatusCode::kInvalidArgument, "etcd://HOST");
  GRADRAIL_CHECK(!url->endpoints.empty() && !url->job.empty() && url->job.size() <= 128 && url->text == text);
  GRADRAIL_CHECK(url->job.find('/') == std::string::npos);
  for (const std::string& endpoint : url->endpoints) GRADRAIL_CHECK(endpoint.starts_with("http"));
}

void try_record(const std::string& text) {
  const std::optional<TaskRecord> record = task_record_from(text);
  if (!record) return;
  GRADRAIL_CHECK(record->sizes.ps >= 1 && record->sizes.ps <= 64);
  GRADRAIL_CHECK(record->sizes.workers >= 1 && record->sizes.workers <= ps::kMaxWorkers);
  const std::optional<TaskRecord> again = task_record_from(to_text(*record));
  GRADRAIL_CHECK(again && again->address == record->address && again->id == record->id);
  GRADRAIL_CHECK(again->sizes == record->sizes);
}

void try_roster(const Etcd::Listing& listing) {
  const Roster roster("job", listing);
  const absl::StatusOr<std::optional<Sizes>> sizes = agreed_sizes(roster, Sizes{.ps = 2, .workers = 3});
  if (!sizes.ok()) fuzz::check_refusal(sizes.status(), absl::StatusCode::kInvalidArgument, "--");
  GRADRAIL_CHECK(!sizes.ok() || *sizes == Sizes({.ps = 2, .workers = 3}));
  const std::optional<uint32_t> free = roster.first_free("worker", 4);
  if (free) GRADRAIL_CHECK(*free < 4 && roster.find({"worker", *free}) == nullptr);
  const Roster::Member* const first = roster.first_with_sizes();
  if (first != nullptr) GRADRAIL_CHECK(roster.find(first->task) != nullptr);
}

}  // namespace
}  // namespace gradrail::launch

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace gradrail::launch;
  std::string_view text = gradrail::fuzz::text_of(data, bytes);
  const auto take_line = [&] {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    return line;
  };
  try_url(take_line());
  Etcd::Listing listing;
  while (!text.empty()) {
    const std::string_view line = take_line();
    const size_t space = std::min(line.find(' '), line.size());
    listing.entries.push_back({.key = prefix_of("job") + std::string(line.substr(0, space)),
                               .value = std::string(line.substr(std::min(line.size(), space + 1)))});
    try_record(listing.entries.back().value);
  }
  try_roster(listing);
  return 0;
}
