#include "launch/etcd/roster.h"

#include "base/parse_number.h"
#include "base/status.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace gradrail::launch {
namespace {

using nlohmann::json;

// As --ps: a larger number was not written by this program.
constexpr uint32_t kMostPs = 64;

/// Mistakes in hand-written etcd keys are no reason to end.
std::optional<uint32_t> number_in(const json& from, const char* name, uint32_t most) {
  const auto found = from.find(name);
  // get() throws for another type.
  if (found == from.end() || !found->is_number_unsigned()) return std::nullopt;
  const auto value = found->get<uint64_t>();
  return value >= 1 && value <= most ? std::optional(static_cast<uint32_t>(value)) : std::nullopt;
}

/// "ps/0", as key_of() writes it.
std::optional<ps::TaskId> task_from(std::string_view rest) {
  const size_t slash = rest.find('/');
  if (slash == rest.npos) return std::nullopt;
  ps::TaskId task{.job = std::string(rest.substr(0, slash)), .index = 0};
  if (task.job != "ps" && task.job != "worker") return std::nullopt;
  const std::string_view digits = rest.substr(slash + 1);
  // The whole text must be a number: "ps/0/x" is not the key of a task.
  const auto index = parse_number<uint32_t>(digits);
  if (!index) return std::nullopt;
  task.index = *index;
  return task;
}

}  // namespace

std::string to_text(const TaskRecord& record) {
  return json{
      {"address", record.address}, {"id", record.id}, {"ps", record.sizes.ps}, {"workers", record.sizes.workers}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

std::optional<TaskRecord> task_record_from(const std::string& text) {
  // false: the result is "discarded" instead of an exception.
  const json from = json::parse(text, nullptr, false);
  if (!from.is_object()) return std::nullopt;
  const auto address = from.find("address"), id = from.find("id");
  const auto ps = number_in(from, "ps", kMostPs), workers = number_in(from, "workers", ps::kMaxWorkers);
  if (address == from.end() || !address->is_string() || id == from.end() || !id->is_string() || !ps || !workers)
    return std::nullopt;
  return TaskRecord{.address = address->get<std::string>(), .id = id->get<std::string>(), .sizes = {*ps, *workers}};
}

std::string prefix_of(const std::string& job) { return fmt::format("/gradrail/{}/", job); }

std::string key_of(const std::string& job, const ps::TaskId& task) {
  return fmt::format("{}{}/{}", prefix_of(job), task.job, task.index);
}

Roster::Roster(const std::string& job, const Etcd::Listing& listing) {
  const std::string prefix = prefix_of(job);
  for (const Etcd::Entry& entry : listing.entries) {
    if (!entry.key.starts_with(prefix)) continue;
    std::optional<ps::TaskId> task = task_from(std::string_view(entry.key).substr(prefix.size()));
    if (task) members_.push_back({*std::move(task), task_record_from(entry.value)});
  }
}

const Roster::Member* Roster::find(const ps::TaskId& task) const {
  for (const Member& member : members_) {
    if (member.task.job == task.job && member.task.index == task.index) return &member;
  }
  return nullptr;
}

const Roster::Member* Roster::first_with_sizes() const {
  for (const Member& member : members_) {
    if (member.record) return &member;
  }
  return nullptr;
}

std::optional<uint32_t> Roster::first_free(const std::string& job, uint32_t limit) const {
  for (uint32_t index = 0; index < limit; ++index) {
    if (find({job, index}) == nullptr) return index;
  }
  return std::nullopt;
}

absl::StatusOr<std::optional<Sizes>> agreed_sizes(const Roster& roster, const std::optional<Sizes>& requested) {
  const Roster::Member* const decider = roster.first_with_sizes();
  // The first task with sizes decides for the run; until then all tasks without them wait.
  if (decider == nullptr) return requested;
  const Sizes& sizes = decider->record->sizes;
  if (!requested || *requested == sizes) return sizes;
  const bool other_ps = requested->ps != sizes.ps;
  return absl::InvalidArgumentError(
      fmt::format("--{} {}: the current run has --ps {} --workers {} (set by {}/{} at {}): omit both, or choose "
                  "another name for this job",
                  other_ps ? "ps" : "workers", other_ps ? requested->ps : requested->workers, sizes.ps, sizes.workers,
                  decider->task.job, decider->task.index, decider->record->address));
}

}  // namespace gradrail::launch
