#include <charconv>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "ps/checkpoint.h"
#include "ps/checkpoint_reader.h"

namespace gradrail::ps {
namespace {

struct ShardFile {
  uint64_t global_step = 0;
  uint32_t shard_index = 0;
  uint32_t shard_count = 0;
};

/// Takes `prefix` and a number off the front of `rest`.
template <typename Integer>
bool take(std::string_view& rest, std::string_view prefix, Integer& value) {
  if (!rest.starts_with(prefix)) return false;
  rest.remove_prefix(prefix.size());
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  if (error != std::errc()) return false;
  rest.remove_prefix(static_cast<size_t>(end - rest.data()));
  return true;
}

/// Nothing for foreign names, `.tmp` files and numbers spelt in another way than checkpoint_file_name() does.
std::optional<ShardFile> parse_name(const std::string& name) {
  ShardFile file;
  std::string_view rest = name;
  if (!take(rest, "gradrail-", file.global_step) || !take(rest, "-", file.shard_index) ||
      !take(rest, "-of-", file.shard_count)) {
    return std::nullopt;
  }
  if (file.shard_index >= file.shard_count) return std::nullopt;
  if (name != checkpoint_file_name(file.global_step, file.shard_index, file.shard_count)) return std::nullopt;
  return file;
}

/// (global step, shard count) → shards present. The count is part of the key: a job restarted with other shards may
/// reach a step twice.
using Sets = std::map<std::pair<uint64_t, uint32_t>, std::set<uint32_t>>;

absl::StatusOr<Sets> list_sets(const std::string& folder) {
  Sets sets;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  while (!error && entry != std::filesystem::directory_iterator()) {
    const std::optional<ShardFile> file = parse_name(entry->path().filename().string());
    std::error_code vanished;  // a file that is gone by now is one that is not there
    if (file.has_value() && entry->is_regular_file(vanished)) {
      sets[{file->global_step, file->shard_count}].insert(file->shard_index);
    }
    entry.increment(error);
  }
  if (error) return absl::ErrnoToStatus(error.value(), fmt::format("checkpoint folder {}", folder));
  return sets;
}

bool complete(const Sets::value_type& set) { return set.second.size() == set.first.second; }

std::string shard_path(const std::string& folder, uint64_t global_step, uint32_t shard_index, uint32_t shard_count) {
  return (std::filesystem::path(folder) / checkpoint_file_name(global_step, shard_index, shard_count)).string();
}

std::string describe_missing(uint32_t shard_count, const std::set<uint32_t>& present) {
  // The first few: a name may claim billions of shards.
  std::vector<uint32_t> missing;
  for (uint32_t i = 0; i < shard_count && missing.size() < 8; ++i) {
    if (!present.contains(i)) missing.push_back(i);
  }
  return fmt::format("of {} shards {} are there, missing {}{}", shard_count, present.size(), fmt::join(missing, ", "),
                     shard_count - present.size() > missing.size() ? ", …" : "");
}

/// Shard count of the complete set of that step; the one written last when there are several.
absl::StatusOr<uint32_t> find_set(const std::string& folder, uint64_t global_step) {
  absl::StatusOr<Sets> sets = list_sets(folder);
  if (!sets.ok()) return sets.status();
  std::optional<uint32_t> found;
  std::filesystem::file_time_type found_time;
  std::string incomplete = "no file";
  for (const auto& set : *sets) {
    const auto [step, shard_count] = set.first;
    if (step != global_step) continue;
    if (!complete(set)) {
      incomplete = describe_missing(shard_count, set.second);
      continue;
    }
    std::error_code ignored;
    const auto time = std::filesystem::last_write_time(shard_path(folder, step, 0, shard_count), ignored);
    if (!found.has_value() || time >= found_time) {
      found = shard_count;
      found_time = time;
    }
  }
  if (found.has_value()) return *found;
  return absl::NotFoundError(
      fmt::format("checkpoint folder {}: no complete set of step {}: {}", folder, global_step, incomplete));
}

absl::Status disagrees(const CheckpointReader& shard, std::string_view what) {
  return absl::DataLossError(fmt::format("checkpoint {}: does not belong to its set: {}", shard.path(), what));
}

/// Everything a set must have in common, and that the file is the one its name says.
absl::Status check_member(const CheckpointReader& shard, const ShardFile& name, const CheckpointHeader& first,
                          uint64_t covered) {
  const CheckpointHeader& header = shard.header();
  if (header.global_step != name.global_step) return disagrees(shard, fmt::format("step {}", header.global_step));
  if (header.shard_index != name.shard_index || header.shard_count != name.shard_count) {
    return disagrees(shard, fmt::format("it holds shard {} of {}", header.shard_index, header.shard_count));
  }
  if (header.schema != first.schema) return disagrees(shard, "schema: " + difference(header.schema, first.schema));
  if (header.optimizer != first.optimizer) {
    return disagrees(shard, fmt::format("optimizer {} here, {} in shard 0, or their settings differ",
                                        optimizer_name(header.optimizer.kind), optimizer_name(first.optimizer.kind)));
  }
  if (header.bucket_bytes != first.bucket_bytes) {
    return disagrees(shard,
                     fmt::format("buckets of {} bytes here, {} in shard 0", header.bucket_bytes, first.bucket_bytes));
  }
  if (header.range.first != covered) {
    return disagrees(shard,
                     fmt::format("it begins at element {}, the shard before ends at {}", header.range.first, covered));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<CheckpointReader>> open_set(const std::string& folder, uint64_t global_step,
                                                       uint32_t shard_count) {
  std::vector<CheckpointReader> shards;
  uint64_t covered = 0;
  for (uint32_t i = 0; i < shard_count; ++i) {
    absl::StatusOr<CheckpointReader> shard = CheckpointReader::open(shard_path(folder, global_step, i, shard_count));
    if (!shard.ok()) return shard.status();
    shards.push_back(*std::move(shard));
    GRADRAIL_RETURN_IF_ERROR(check_member(shards.back(), {global_step, i, shard_count}, shards[0].header(), covered));
    covered += shards.back().header().range.count;
  }
  uint64_t elements = 0;
  for (const Tensor& tensor : shards[0].header().schema) elements += tensor.elements();
  if (covered != elements) {
    return absl::DataLossError(fmt::format("checkpoint folder {}: the shards of step {} hold {} of {} elements", folder,
                                           global_step, covered, elements));
  }
  return shards;
}

}  // namespace

std::string checkpoint_file_name(uint64_t global_step, uint32_t shard_index, uint32_t shard_count) {
  return fmt::format("gradrail-{:012}-{}-of-{}.ckpt", global_step, shard_index, shard_count);
}

absl::StatusOr<CheckpointSets> list_checkpoints(const std::string& folder) {
  const absl::StatusOr<Sets> sets = list_sets(folder);
  if (!sets.ok()) return sets.status();
  CheckpointSets found;
  for (auto set = sets->rbegin(); set != sets->rend(); ++set) {
    const auto [step, shard_count] = set->first;
    if (complete(*set)) {
      if (found.complete.empty() || found.complete.back() != step) found.complete.push_back(step);
    } else if (found.incomplete.empty()) {
      found.incomplete_step = step;
      found.incomplete = fmt::format("step {} is incomplete: {}", step, describe_missing(shard_count, set->second));
    }
  }
  return found;
}

absl::StatusOr<uint64_t> newest_checkpoint(const std::string& folder) {
  const absl::StatusOr<CheckpointSets> sets = list_checkpoints(folder);
  if (!sets.ok()) return sets.status();
  if (!sets->complete.empty()) return sets->complete.front();
  return absl::NotFoundError(fmt::format("checkpoint folder {}: no complete set{}{}", folder,
                                         sets->incomplete.empty() ? "" : ": ", sets->incomplete));
}

absl::StatusOr<Checkpoint> read_checkpoint_set(const std::string& folder, uint64_t global_step) {
  absl::StatusOr<uint32_t> shard_count = find_set(folder, global_step);
  if (!shard_count.ok()) return shard_count.status();
  absl::StatusOr<std::vector<CheckpointReader>> shards = open_set(folder, global_step, *shard_count);
  if (!shards.ok()) return shards.status();

  Checkpoint whole;
  whole.header = shards->front().header();
  const ElementRange last = shards->back().header().range;
  whole.header.range = {0, last.first + last.count};
  whole.header.shard_index = 0;
  whole.header.shard_count = 1;
  whole.header.bucket_versions = {global_step};
  whole.parameters.resize(whole.header.range.count);
  whole.state.assign(static_cast<size_t>(state_vectors(whole.header.optimizer.kind)),
                     std::vector<float>(whole.header.range.count));
  for (CheckpointReader& shard : *shards) {
    const ElementRange range = shard.header().range;
    CheckpointTarget target = {.parameters = absl::MakeSpan(whole.parameters).subspan(range.first, range.count)};
    for (auto& state : whole.state) target.state.push_back(absl::MakeSpan(state).subspan(range.first, range.count));
    GRADRAIL_RETURN_IF_ERROR(shard.read(target));
  }
  return whole;
}

}  // namespace gradrail::ps
