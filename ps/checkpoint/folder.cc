#include "ps/checkpoint/folder.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "base/file.h"
#include "base/log.h"
#include "base/random_bits.h"
#include "base/read_file.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/checkpoint/set.h"

namespace gradrail::ps {
namespace {

constexpr size_t kIdentityBytes = 16;
constexpr size_t kMostIdentityBytes = 4096;
constexpr size_t kPassedOverNamed = 4;  // a folder may hold thousands
constexpr int kTries = 3;               // a set may be removed while it is read; then a newer one is there

absl::Status check_usable(const std::string& folder) {
  const absl::Status kind = check_regular_file(folder);
  if (absl::IsFailedPrecondition(kind))  // a link to storage that is not mounted
    return absl::FailedPreconditionError(fmt::format("checkpoint folder {}", message_of(kind)));
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  // The check is at the start: otherwise the first save would fail after minutes of training.
  if (!error && access(folder.c_str(), R_OK | W_OK | X_OK) != 0) error = {errno, std::generic_category()};
  if (!error && !std::filesystem::is_directory(folder, error)) error = std::make_error_code(std::errc::not_a_directory);
  if (!error) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format(
      "checkpoint folder {}: {} (it must be a folder in which this user may write)", folder, error.message()));
}

/// Writes an identity unless another task was faster. A link, unlike a rename, fails when the name exists, over NFS
/// too.
absl::Status offer_identity(const std::string& path) {
  const std::string bytes = random_bytes(kIdentityBytes);
  const std::string identity = absl::BytesToHexString({bytes.data(), bytes.size()}) + "\n";
  const std::string ours = fmt::format("{}.{}", path, identity.substr(0, 8));
  GRADRAIL_ASSIGN_OR_RETURN(ReplacementFile file, ReplacementFile::create(ours, "checkpoint"));
  GRADRAIL_RETURN_IF_ERROR(file.write(identity.data(), identity.size()));
  GRADRAIL_RETURN_IF_ERROR(file.commit());
  // The last of several simultaneous tasks wins on a file system without links. The others then differ from it and end.
  const bool linked = ::link(ours.c_str(), path.c_str()) == 0 || errno == EEXIST;
  absl::Status offered;
  if (!linked && ::rename(ours.c_str(), path.c_str()) != 0) offered = absl::ErrnoToStatus(errno, "rename to " + path);
  ::unlink(ours.c_str());
  return offered;
}

/// "": the file is empty.
absl::StatusOr<std::string> read_identity(const std::string& path) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::string text, read_file(path, kMostIdentityBytes));
  return std::string(absl::StripAsciiWhitespace(text));
}

absl::Status other_model(const std::string& folder, const std::string& what) {
  return absl::FailedPreconditionError(fmt::format("checkpoint in {} {}", folder, what));
}

bool is_reordered(Schema ours, Schema theirs) {
  const auto by_name = [](const Tensor& a, const Tensor& b) { return a.name < b.name; };
  std::sort(ours.begin(), ours.end(), by_name);
  std::sort(theirs.begin(), theirs.end(), by_name);
  return ours == theirs;
}

bool is_of_other_run(const CheckpointHeader& header, uint64_t run) {
  return run != 0 && header.run != 0 && header.run != run;
}

absl::Status check_fits(const std::string& folder, const CheckpointHeader& header, const ExpectedContent& expected) {
  if (is_of_other_run(header, expected.run)) {
    return other_model(folder, fmt::format("at step {} is of another run", header.global_step));
  }
  constexpr Sides kSides = {.ours = "in the model", .theirs = "in the checkpoint"};
  if (const std::string differs = difference(expected.schema, header.schema, kSides); !differs.empty()) {
    if (is_reordered(expected.schema, header.schema)) {
      return other_model(folder, fmt::format("has the tensors of this model in another order: {}; "
                                             "import a file in the order of the model",
                                             differs));
    }
    return other_model(folder, fmt::format("is of another model: {}; use another checkpoint "
                                           "folder, or the model of the run that saved it",
                                           differs));
  }
  if (header.optimizer.kind != expected.optimizer) {
    // The state vectors of another optimizer have another meaning.
    return other_model(
        folder,
        fmt::format(
            "was trained with optimizer {0}, this run uses {1}; use optimizer {0}, or another checkpoint folder",
            optimizer_name(header.optimizer.kind), optimizer_name(expected.optimizer)));
  }
  return absl::OkStatus();
}

/// Describes why no set can be used, and the possible remedies.
absl::Status none_whole(const std::string& folder, const std::vector<CheckpointSet>& sets, const absl::Status& newest) {
  if (sets.empty()) return absl::NotFoundError(fmt::format("checkpoint folder {}: holds no checkpoint", folder));
  if (newest.ok()) {
    return absl::FailedPreconditionError(
        fmt::format("checkpoint folder {}: no complete set: {} (all ps tasks need one shared folder: add the missing "
                    "files, or use another folder)",
                    folder, sets.front().missing()));
  }
  const auto complete =
      std::count_if(sets.begin(), sets.end(), [](const CheckpointSet& set) { return set.complete(); });
  return absl::DataLossError(fmt::format(
      "{} ({}; use another folder for a new run)", message_of(newest),
      complete == 1 ? "there is no older one" : fmt::format("the {} older ones are damaged too", complete - 1)));
}

void log_passed_over(const std::string& folder, const std::vector<std::string>& reasons, uint64_t step) {
  for (size_t i = 0; i < std::min(reasons.size(), kPassedOverNamed); ++i) {
    log_warning("checkpoint folder {}: {}: going back to step {}", folder, reasons[i], step);
  }
  if (reasons.size() > kPassedOverNamed) {
    log_warning("checkpoint folder {}: {} more sets were skipped", folder, reasons.size() - kPassedOverNamed);
  }
}

void warn_not_finite(const std::string& folder, const std::vector<CheckpointSet>& sets, uint64_t step) {
  const auto last = std::find_if(sets.begin(), sets.end(), [&](const CheckpointSet& set) {
    return set.global_step < step && set.complete() && is_finite(folder, set);
  });
  log_warning("checkpoint folder {}: the parameters or the optimizer state of step {} have NaN or infinity; {}", folder,
              step,
              last == sets.end()
                  ? "no older set is without them"
                  : fmt::format("the last set without them is that of step {}: remove the later ones to return to it",
                                last->global_step));
}

/// Reads the newest set in one pass over the present files. NOT_FOUND also for a set that was removed meanwhile.
absl::StatusOr<Checkpoint> try_newest_set(const std::string& folder, uint64_t run) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<CheckpointSet> sets, list_checkpoint_sets(folder));
  std::vector<std::string> passed_over;
  size_t of_other_runs = 0;
  absl::Status newest_damage;
  for (const CheckpointSet& set : sets) {
    // No crash leaves such a name: its storage may return, and an older set would discard its steps.
    GRADRAIL_RETURN_IF_ERROR(set.unreadable);
    if (!set.complete()) {
      // The set is a save that a crash interrupted, or this host does not list all files of the folder.
      passed_over.push_back(set.missing());
      continue;
    }
    if (run != 0) {
      // A damaged header is a case for the read below.
      const absl::StatusOr<CheckpointReader> first = CheckpointReader::open(set.path(folder, 0));
      if (first.ok() && is_of_other_run(first->header(), run)) {
        ++of_other_runs;
        passed_over.push_back(fmt::format("step {} is of another run", set.global_step));
        continue;
      }
    }
    absl::StatusOr<Checkpoint> checkpoint = read_checkpoint_set(folder, set);
    if (checkpoint.ok()) log_passed_over(folder, passed_over, set.global_step);
    if (checkpoint.ok() && !checkpoint->header.is_finite) warn_not_finite(folder, sets, set.global_step);
    // Only damage leads to an older set. Another error, such as a lack of memory, would discard later steps.
    if (!absl::IsDataLoss(checkpoint.status())) return checkpoint;
    passed_over.emplace_back(message_of(checkpoint.status()));
    newest_damage.Update(checkpoint.status());
  }
  if (newest_damage.ok() && of_other_runs > 0) {
    return absl::FailedPreconditionError(fmt::format(
        "checkpoint folder {}: no complete set is of this run, {} are of other runs (give this task the folder of the "
        "run)",
        folder, of_other_runs));
  }
  return none_whole(folder, sets, newest_damage);
}

}  // namespace

absl::StatusOr<std::string> prepare_checkpoint_folder(const std::string& folder) {
  GRADRAIL_RETURN_IF_ERROR(check_usable(folder));
  const std::string path = (std::filesystem::path(folder) / "gradrail-folder").string();
  if (absl::IsNotFound(check_regular_file(path))) GRADRAIL_RETURN_IF_ERROR(offer_identity(path));
  absl::StatusOr<std::string> identity = read_identity(path);
  if (identity.ok() && !identity->empty()) return identity;
  const std::string why = identity.ok() ? path + ": is empty" : std::string(message_of(identity.status()));
  return absl::FailedPreconditionError(why + "; remove it, the next start writes it again");
}

absl::StatusOr<Checkpoint> read_newest_set(const std::string& folder, uint64_t run) {
  absl::StatusOr<Checkpoint> checkpoint = try_newest_set(folder, run);
  // NOT_FOUND: the retention of another task removed files between the listing and the read.
  for (int i = 1; i < kTries && absl::IsNotFound(checkpoint.status()); ++i) checkpoint = try_newest_set(folder, run);
  return checkpoint;
}

absl::StatusOr<std::shared_ptr<const Checkpoint>> restore_newest(const std::string& folder,
                                                                 const ExpectedContent& expected) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<CheckpointSet> sets, list_checkpoint_sets(folder));
  // An empty folder is a new run. Damage is an error below: a new run would hide the loss of all steps.
  if (sets.empty()) return nullptr;
  GRADRAIL_ASSIGN_OR_RETURN(Checkpoint checkpoint, read_newest_set(folder, expected.run));
  GRADRAIL_RETURN_IF_ERROR(check_fits(folder, checkpoint.header, expected));
  return std::make_shared<const Checkpoint>(std::move(checkpoint));
}

absl::StatusOr<std::shared_ptr<const Checkpoint>> restore_set(const std::string& folder, const SavedSet& set,
                                                              const ExpectedContent& expected) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<CheckpointSet> sets, list_checkpoint_sets(folder));
  const auto found = std::find_if(sets.begin(), sets.end(), [&](const CheckpointSet& candidate) {
    return candidate.global_step == set.global_step && candidate.saved_us == set.saved_us;
  });
  if (found != sets.end()) GRADRAIL_RETURN_IF_ERROR(found->unreadable);
  // No older set is taken: all tasks of a run must begin from the same one.
  if (found == sets.end() || !found->complete()) {
    return absl::FailedPreconditionError(fmt::format(
        "checkpoint folder {}: {}, but another ps task has restored that set (do all ps tasks share one folder? start "
        "the run again)",
        folder, found == sets.end() ? fmt::format("step {} is missing", set.global_step) : found->missing()));
  }
  GRADRAIL_ASSIGN_OR_RETURN(Checkpoint checkpoint, read_checkpoint_set(folder, *found));
  GRADRAIL_RETURN_IF_ERROR(check_fits(folder, checkpoint.header, expected));
  return std::make_shared<const Checkpoint>(std::move(checkpoint));
}

}  // namespace gradrail::ps
