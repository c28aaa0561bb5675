#include "ps/checkpoint_folder.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/escaping.h"
#include "base/random_bits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "ps/checkpoint_file.h"
#include "spdlog/spdlog.h"

namespace gradrail::ps {
namespace {

constexpr size_t kIdentityBytes = 16;
constexpr size_t kOlderNamed = 4;  // folders of long runs hold thousands

absl::Status check_usable(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error && access(folder.c_str(), R_OK | W_OK | X_OK) != 0) error = {errno, std::generic_category()};
  if (!error && !std::filesystem::is_directory(folder, error)) error = std::make_error_code(std::errc::not_a_directory);
  if (!error) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format(
      "--checkpoint_dir {}: {} (it must be a folder in which this user may write)", folder, error.message()));
}

/// Writes an identity unless another task was faster: a link, unlike a rename, fails where the name is taken, over NFS
/// too.
absl::Status offer_identity(const std::string& path) {
  const std::string bytes = random_bytes(kIdentityBytes);
  const std::string identity = absl::BytesToHexString({bytes.data(), bytes.size()}) + "\n";
  const std::string ours = fmt::format("{}.{}", path, identity.substr(0, 8));
  absl::StatusOr<ReplacementFile> file = ReplacementFile::create(ours);
  if (!file.ok()) return file.status();
  GRADRAIL_RETURN_IF_ERROR(file->write(identity.data(), identity.size()));
  GRADRAIL_RETURN_IF_ERROR(file->commit());
  // Where there are no links the last of several that come at once wins; the others are found to differ and end.
  const bool linked = ::link(ours.c_str(), path.c_str()) == 0 || errno == EEXIST;
  if (!linked && ::rename(ours.c_str(), path.c_str()) != 0) return absl::ErrnoToStatus(errno, "rename to " + path);
  ::unlink(ours.c_str());
  return absl::OkStatus();
}

std::string read_identity(const std::string& path) {
  std::string identity;
  std::ifstream(path) >> identity;
  return identity;
}

absl::Status other_model(const std::string& folder, const std::string& what) {
  return absl::FailedPreconditionError(fmt::format("checkpoint in {} {}", folder, what));
}

/// What a person can do about a set that cannot be read.
absl::Status with_remedy(const absl::Status& damage, const std::vector<uint64_t>& complete) {
  const std::string move = fmt::format("move the files of step {} out of the folder", complete.front());
  if (complete.size() == 1) {
    return absl::Status(damage.code(),
                        fmt::format("{} (there is no older one; to begin anew, {})", message_of(damage), move));
  }
  const std::vector<uint64_t> older(complete.begin() + 1,
                                    complete.begin() + 1 + std::min(kOlderNamed, complete.size() - 1));
  return absl::Status(damage.code(), fmt::format("{} (older complete sets: step {}{}; to go on from step {}, {})",
                                                 message_of(damage), fmt::join(older, ", "),
                                                 complete.size() - 1 > older.size() ? ", …" : "", older[0], move));
}

}  // namespace

absl::StatusOr<std::string> prepare_checkpoint_folder(const std::string& folder) {
  GRADRAIL_RETURN_IF_ERROR(check_usable(folder));
  const std::string path = (std::filesystem::path(folder) / "gradrail-folder").string();
  if (access(path.c_str(), F_OK) != 0) GRADRAIL_RETURN_IF_ERROR(offer_identity(path));
  std::string identity = read_identity(path);
  if (!identity.empty()) return identity;
  return absl::FailedPreconditionError(
      fmt::format("{}: is empty or cannot be read; remove it, the next start writes it anew", path));
}

absl::StatusOr<std::shared_ptr<const Checkpoint>> restore_newest(const std::string& folder, const Schema& schema,
                                                                 OptimizerKind optimizer) {
  const absl::StatusOr<CheckpointSets> sets = list_checkpoints(folder);
  if (!sets.ok()) return sets.status();
  if (sets->complete.empty() && sets->incomplete.empty()) return nullptr;
  if (sets->complete.empty()) {
    return absl::FailedPreconditionError(fmt::format(
        "checkpoint folder {}: no complete set: {} (put the missing files there: all ps tasks need one shared folder; "
        "or, to begin anew, use another folder)",
        folder, sets->incomplete));
  }
  const uint64_t step = sets->complete.front();
  absl::StatusOr<Checkpoint> checkpoint = read_checkpoint_set(folder, step);
  if (absl::IsDataLoss(checkpoint.status())) return with_remedy(checkpoint.status(), sets->complete);
  if (!checkpoint.ok()) return checkpoint.status();
  if (const std::string differs = difference(schema, checkpoint->header.schema); !differs.empty()) {
    return other_model(folder, fmt::format("is of another model: {} (there: the checkpoint)", differs));
  }
  if (checkpoint->header.optimizer.kind != optimizer) {
    return other_model(folder,
                       fmt::format("was trained with optimizer {}, this run asks for {}",
                                   optimizer_name(checkpoint->header.optimizer.kind), optimizer_name(optimizer)));
  }
  if (sets->incomplete_step > step) {
    spdlog::warn("checkpoint folder {}: {}: going back to step {}", folder, sets->incomplete, step);
  }
  return std::make_shared<const Checkpoint>(*std::move(checkpoint));
}

}  // namespace gradrail::ps
