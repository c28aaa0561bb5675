#include "ps/checkpoint/set.h"

#include <charconv>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/read_file.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace gradrail::ps {
namespace {

constexpr std::string_view kTemporary = ".tmp";

struct ShardFile {
  uint64_t global_step = 0;
  uint64_t saved_us = 0;
  uint32_t shard_index = 0;
  uint32_t shard_count = 0;
};

/// Removes `prefix` and a number from the front of `rest`.
template <typename Integer>
bool take(std::string_view& rest, std::string_view prefix, Integer& value) {
  if (!rest.starts_with(prefix)) return false;
  rest.remove_prefix(prefix.size());
  // from_chars() accepts leading zeros; parse_name() compares the whole name afterwards.
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  if (error != std::errc()) return false;
  rest.remove_prefix(static_cast<size_t>(end - rest.data()));
  return true;
}

/// Nothing for other names, `.tmp` files, and numbers in a form that checkpoint_file_name() does not write.
std::optional<ShardFile> parse_name(std::string_view name) {
  ShardFile file;
  std::string_view rest = name;
  if (!take(rest, "gradrail-", file.global_step) || !take(rest, "-", file.saved_us) ||
      !take(rest, "-", file.shard_index) || !take(rest, "-of-", file.shard_count)) {
    return std::nullopt;
  }
  if (file.shard_index >= file.shard_count) return std::nullopt;
  if (name != checkpoint_file_name(file.global_step, file.saved_us, file.shard_index, file.shard_count)) {
    return std::nullopt;
  }
  return file;
}

absl::Status folder_error(const std::string& folder, std::error_code error) {
  const absl::Status kind = check_regular_file(folder);
  // The folder is a link to storage that is not mounted: the kernel reports only that the folder does not exist.
  if (absl::IsFailedPrecondition(kind))
    return absl::FailedPreconditionError(fmt::format("checkpoint folder {}", message_of(kind)));
  return absl::ErrnoToStatus(error.value(), fmt::format("checkpoint folder {}", folder));
}

/// Calls `use` with each name in a folder, also that of a link to storage which is not mounted.
template <typename Use>
absl::Status for_each_name(const std::string& folder, Use use) {
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  while (!error && entry != std::filesystem::directory_iterator()) {
    use(*entry);
    entry.increment(error);
  }
  return error ? folder_error(folder, error) : absl::OkStatus();
}

absl::Status disagrees(const CheckpointReader& shard, std::string_view what) {
  return absl::DataLossError(fmt::format("checkpoint {}: does not belong to its set: {}", shard.path(), what));
}

/// Compares the fields that a set has in common, and the file's header with its name.
absl::Status check_member(const CheckpointReader& shard, const ShardFile& name, const CheckpointHeader& first,
                          uint64_t covered) {
  const CheckpointHeader& header = shard.header();
  if (header.global_step != name.global_step) return disagrees(shard, fmt::format("step {}", header.global_step));
  if (header.shard_index != name.shard_index || header.shard_count != name.shard_count) {
    return disagrees(shard, fmt::format("it holds shard {} of {}", header.shard_index, header.shard_count));
  }
  // Shard 0 is the reference: any two of the files may be from other runs.
  if (header.schema != first.schema) return disagrees(shard, "schema: " + difference(header.schema, first.schema));
  if (header.optimizer != first.optimizer) {
    return disagrees(shard, fmt::format("optimizer {} here, {} in shard 0, or their settings differ",
                                        optimizer_name(header.optimizer.kind), optimizer_name(first.optimizer.kind)));
  }
  if (header.saved_us != name.saved_us) return disagrees(shard, fmt::format("saved at {} us", header.saved_us));
  if (header.bucket_bytes != first.bucket_bytes) {
    return disagrees(shard,
                     fmt::format("buckets of {} bytes here, {} in shard 0", header.bucket_bytes, first.bucket_bytes));
  }
  // Ranges without a gap and without an overlap, in the order of the shards.
  if (header.range.first != covered) {
    return disagrees(shard,
                     fmt::format("it begins at element {}, the shard before ends at {}", header.range.first, covered));
  }
  return absl::OkStatus();
}

}  // namespace

std::string checkpoint_file_name(uint64_t global_step, uint64_t saved_us, uint32_t shard_index, uint32_t shard_count) {
  return fmt::format("gradrail-{:012}-{:016}-{}-of-{}.ckpt", global_step, saved_us, shard_index, shard_count);
}

std::string CheckpointSet::missing() const {
  // The first few: a name may claim billions of shards.
  std::vector<uint32_t> some;
  for (uint32_t i = 0; i < shard_count && some.size() < 8; ++i) {
    if (!present.contains(i)) some.push_back(i);
  }
  return fmt::format("step {} is incomplete: of {} shards {} are there, missing {}{}", global_step, shard_count,
                     present.size(), fmt::join(some, ", "), shard_count - present.size() > some.size() ? ", …" : "");
}

std::string CheckpointSet::path(const std::string& folder, uint32_t shard_index) const {
  return (std::filesystem::path(folder) / checkpoint_file_name(global_step, saved_us, shard_index, shard_count))
      .string();
}

absl::StatusOr<std::vector<CheckpointSet>> list_checkpoint_sets(const std::string& folder) {
  // The order of the key, reversed at the end, is the newest first.
  std::map<std::tuple<uint64_t, uint64_t, uint32_t>, CheckpointSet> found;
  GRADRAIL_RETURN_IF_ERROR(for_each_name(folder, [&](const std::filesystem::directory_entry& entry) {
    const std::optional<ShardFile> file = parse_name(entry.path().filename().string());
    if (!file.has_value()) return;
    const absl::Status readable = check_regular_file(entry.path().string());
    if (absl::IsNotFound(readable)) return;  // removed since the listing
    CheckpointSet& set = found[{file->global_step, file->saved_us, file->shard_count}];
    set.global_step = file->global_step;
    set.saved_us = file->saved_us;
    set.shard_count = file->shard_count;
    set.present.insert(file->shard_index);
    if (!readable.ok() && set.unreadable.ok()) {
      set.unreadable = absl::FailedPreconditionError(
          fmt::format("checkpoint {} (make its file readable, or remove it from the folder)", message_of(readable)));
    }
    std::error_code vanished;
    const uintmax_t bytes = readable.ok() ? entry.file_size(vanished) : 0;
    if (!vanished) set.bytes += bytes;
  }));
  std::vector<CheckpointSet> sets;
  for (auto set = found.rbegin(); set != found.rend(); ++set) sets.push_back(std::move(set->second));
  return sets;
}

absl::StatusOr<std::vector<UnfinishedFile>> list_unfinished_files(const std::string& folder) {
  std::vector<UnfinishedFile> files;
  GRADRAIL_RETURN_IF_ERROR(for_each_name(folder, [&](const std::filesystem::directory_entry& entry) {
    const std::string name = entry.path().filename().string();
    std::error_code vanished;
    if (!name.ends_with(kTemporary) || !entry.is_regular_file(vanished)) return;
    const auto file = parse_name(std::string_view(name).substr(0, name.size() - kTemporary.size()));
    if (file.has_value()) files.push_back({.path = entry.path().string(), .saved_us = file->saved_us});
  }));
  return files;
}

absl::StatusOr<std::vector<CheckpointReader>> open_checkpoint_set(const std::string& folder, const CheckpointSet& set) {
  GRADRAIL_CHECK(set.shard_count > 0);  // parse_name() accepts no other
  std::vector<CheckpointReader> shards;
  uint64_t covered = 0;
  for (uint32_t i = 0; i < set.shard_count; ++i) {
    GRADRAIL_ASSIGN_OR_RETURN(CheckpointReader shard, CheckpointReader::open(set.path(folder, i)));
    shards.push_back(std::move(shard));
    GRADRAIL_RETURN_IF_ERROR(
        check_member(shards.back(), {set.global_step, set.saved_us, i, set.shard_count}, shards[0].header(), covered));
    covered += shards.back().header().range.count;
  }
  const uint64_t elements = layout_of(shards[0].header().schema).elements;
  if (covered != elements) {
    return absl::DataLossError(fmt::format("checkpoint folder {}: the shards of step {} hold {} of {} elements", folder,
                                           set.global_step, covered, elements));
  }
  return shards;
}

bool is_finite(const std::string& folder, const CheckpointSet& set) {
  return std::all_of(set.present.begin(), set.present.end(), [&](uint32_t shard) {
    const absl::StatusOr<CheckpointReader> file = CheckpointReader::open(set.path(folder, shard));
    return !file.ok() || file->header().is_finite;
  });
}

absl::StatusOr<Checkpoint> read_checkpoint_set(const std::string& folder, const CheckpointSet& set) {
  GRADRAIL_ASSIGN_OR_RETURN(std::vector<CheckpointReader> shards, open_checkpoint_set(folder, set));
  Checkpoint whole;
  whole.header = shards.front().header();
  const ElementRange last = shards.back().header().range;
  whole.header.range = {0, last.first + last.count};
  whole.header.shard_index = 0;
  whole.header.shard_count = 1;
  // Buckets of another number of shards have other bounds: only the step applies to all.
  whole.header.bucket_versions = {set.global_step};
  whole.parameters.resize(whole.header.range.count);
  whole.state.assign(static_cast<size_t>(state_vectors(whole.header.optimizer.kind)),
                     std::vector<float>(whole.header.range.count));
  // Allocated above as a whole: open_checkpoint_set() has compared the sizes with those of the files.
  for (CheckpointReader& shard : shards) {
    whole.header.is_finite = whole.header.is_finite && shard.header().is_finite;
    const std::vector<uint64_t>& steps = shard.header().fragment_steps;
    whole.header.fragment_steps.resize(std::max(whole.header.fragment_steps.size(), steps.size()));
    for (size_t i = 0; i < steps.size(); ++i)
      whole.header.fragment_steps[i] = std::max(whole.header.fragment_steps[i], steps[i]);
    const ElementRange range = shard.header().range;
    CheckpointTarget target = {.parameters = absl::MakeSpan(whole.parameters).subspan(range.first, range.count)};
    for (auto& state : whole.state) target.state.push_back(absl::MakeSpan(state).subspan(range.first, range.count));
    GRADRAIL_RETURN_IF_ERROR(shard.read(target));
  }
  return whole;
}

absl::StatusOr<uint64_t> newest_checkpoint(const std::string& folder) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<CheckpointSet> sets, list_checkpoint_sets(folder));
  for (const CheckpointSet& set : sets) {
    GRADRAIL_RETURN_IF_ERROR(set.unreadable);
    if (set.complete()) return set.global_step;
  }
  return absl::NotFoundError(fmt::format("checkpoint folder {}: no complete set{}", folder,
                                         sets.empty() ? "" : ": " + sets.front().missing()));
}

absl::StatusOr<Checkpoint> read_checkpoint_set(const std::string& folder, uint64_t global_step) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<CheckpointSet> sets, list_checkpoint_sets(folder));
  std::string why = "no file";
  for (const CheckpointSet& set : sets) {
    if (set.global_step != global_step) continue;
    GRADRAIL_RETURN_IF_ERROR(set.unreadable);
    if (set.complete()) return read_checkpoint_set(folder, set);
    why = set.missing();
  }
  return absl::NotFoundError(
      fmt::format("checkpoint folder {}: no complete set of step {}: {}", folder, global_step, why));
}

}  // namespace gradrail::ps
