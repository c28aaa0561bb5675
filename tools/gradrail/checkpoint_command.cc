#include "tools/gradrail/checkpoint_command.h"

#include <ctime>

#include "CLI/CLI.hpp"
#include "base/log.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "ps/checkpoint/folder.h"
#include "ps/checkpoint/set.h"
#include "ps/protocol/optimizer_settings.h"

namespace gradrail::tools {
namespace {

/// A model of hundreds of tensors must not fill the line.
constexpr size_t kNamesShown = 4;

std::string time_text(uint64_t saved_us) {
  const auto seconds = static_cast<std::time_t>(saved_us / 1'000'000);
  std::tm parts{};
  localtime_r(&seconds, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

/// "79510 elements in 4 tensors: hid_w [784, 100], …"
std::string schema_text(const Schema& schema) {
  uint64_t elements = 0;
  std::vector<std::string> names;
  for (const Tensor& tensor : schema) {
    elements += tensor.elements();
    if (names.size() < kNamesShown) names.push_back(fmt::format("{} [{}]", tensor.name, fmt::join(tensor.shape, ", ")));
  }
  return fmt::format("{} elements in {} tensors: {}{}", elements, schema.size(), fmt::join(names, ", "),
                     schema.size() > names.size() ? ", …" : "");
}

/// Errors  The files cannot be opened, or are none. Damage is part of the table.
absl::Status print_set(const std::string& folder, const ps::CheckpointSet& set) {
  const std::string common = fmt::format("{:>12}  {:>6}  {:>14}  {:<19}", set.global_step, set.shard_count, set.bytes,
                                         time_text(set.saved_us));
  if (set.unreadable.ok() && !set.complete()) {
    fmt::print("{}  {}\n", common, set.missing());
    return absl::OkStatus();
  }
  // open_checkpoint_set() reads the headers of all files. It checks what belongs together, not the data.
  const absl::StatusOr<std::vector<ps::CheckpointReader>> shards =
      set.unreadable.ok() ? ps::open_checkpoint_set(folder, set) : set.unreadable;
  if (!shards.ok()) {
    const bool is_damaged = absl::IsDataLoss(shards.status());
    fmt::print("{}  {}: {}\n", common, is_damaged ? "damaged" : "unreadable", message_of(shards.status()));
    return is_damaged ? absl::OkStatus() : shards.status();
  }
  const ps::CheckpointHeader& header = shards->front().header();
  fmt::print("{}  {:<8}  {:<9}  {}\n", common, ps::is_finite(folder, set) ? "complete" : "NaN/inf",
             optimizer_name(header.optimizer.kind), schema_text(header.schema));
  return absl::OkStatus();
}

/// True: each file could be read.
absl::StatusOr<bool> list(const std::string& folder) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<ps::CheckpointSet> sets, ps::list_checkpoint_sets(folder));
  fmt::print("{}{}\n", folder, sets.empty() ? ": holds no checkpoint" : "");
  if (sets.empty()) return true;
  fmt::print("{:>12}  {:>6}  {:>14}  {:<19}  state     optimizer  schema\n", "step", "shards", "bytes", "saved");
  absl::Status unreadable;
  for (const ps::CheckpointSet& set : sets) unreadable.Update(print_set(folder, set));
  // A crash in the middle of a save leaves such files; the next save of a run removes them.
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<ps::UnfinishedFile> unfinished, ps::list_unfinished_files(folder));
  for (const ps::UnfinishedFile& file : unfinished) fmt::print("unfinished: {}\n", file.path);
  if (!unreadable.ok()) return unreadable;
  return true;
}

/// Every byte of every file, one file at a time; says what is wrong.
bool verify_set(const std::string& folder, const ps::CheckpointSet& set) {
  std::vector<std::string> wrong;
  // The files are read one after the other: a set can be larger than the memory.
  for (const uint32_t shard : set.present) {
    const absl::Status read = ps::read_checkpoint(set.path(folder, shard)).status();
    if (!read.ok()) wrong.emplace_back(message_of(read));
  }
  if (wrong.empty() && set.complete()) {
    // Each file can be whole although the files do not belong together.
    const absl::Status together = ps::open_checkpoint_set(folder, set).status();
    if (!together.ok()) wrong.emplace_back(message_of(together));
  }
  for (const std::string& what : wrong) fmt::print("{}: {}\n", set.unreadable.ok() ? "damaged" : "unreadable", what);
  if (wrong.empty() && !set.complete()) fmt::print("{}\n", set.missing());
  if (wrong.empty() && set.complete()) {
    fmt::print("step {} is whole: {} bytes in {} files\n", set.global_step, set.bytes, set.shard_count);
  }
  return wrong.empty();
}

absl::StatusOr<bool> verify(const std::string& folder) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<ps::CheckpointSet> sets, ps::list_checkpoint_sets(folder));
  bool good = true;
  size_t whole = 0;
  for (const ps::CheckpointSet& set : sets) {
    const bool undamaged = verify_set(folder, set);
    good = good && undamaged;
    whole += undamaged && set.complete() ? 1 : 0;
  }
  if (whole == 0) fmt::print("{}: holds no whole checkpoint\n", folder);
  // A folder without a complete set restores nothing, so it does not count as good.
  return good && whole > 0;
}

}  // namespace

void add_checkpoint_flags(CLI::App& command, CheckpointFlags& flags) {
  command.require_subcommand(1);
  command.footer("Arrays of a checkpoint for NumPy and PyTorch, and back: python3 -m gradrail.checkpoint --help");
  const auto add = [&](const char* verb, const char* help) {
    CLI::App& sub = *command.add_subcommand(verb, help);
    sub.add_option("FOLDER", flags.folders, "checkpoint folders (--checkpoint_dir of a run)")->required();
    sub.callback([&flags, verb] { flags.verb = verb; });
  };
  add("ls", "list checkpoints: step, shards, bytes, time, optimizer, schema, missing files");
  add("verify", "read every byte; exit code 1 if a file is damaged or no set is complete");
}

absl::StatusOr<bool> run_checkpoint(const CheckpointFlags& flags) {
  start_log("checkpoint");
  bool good = true;
  absl::Status unreadable;  // of the last such folder
  for (const std::string& folder : flags.folders) {
    const absl::StatusOr<bool> whole = flags.verb == "ls" ? list(folder) : verify(folder);
    good = good && whole.value_or(false);
    if (whole.ok()) continue;
    if (!unreadable.ok()) fmt::print(stderr, "gradrail: {}\n", message_of(unreadable));
    unreadable = whole.status();
  }
  if (!unreadable.ok()) return unreadable;
  return good;
}

}  // namespace gradrail::tools
