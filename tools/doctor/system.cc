#include "tools/doctor/system.h"

#include "base/status.h"
#include "base/subprocess.h"
#include "fmt/format.h"
#include "tools/doctor/text.h"

namespace gradrail::tools::doctor {
namespace {

/// Loading CUDA on a host with eight GPUs and no persistence daemon takes this long.
constexpr Duration kObserveDeadline = std::chrono::seconds(30);

/// The first text in the file of a failed observation.
/// A recording keeps errors too: else --root would report "not recorded" where the host had a reason.
constexpr std::string_view kFailed = "failed: ";

}  // namespace

absl::StatusOr<std::string> System::recorded(const std::string& path) {
  const FileText file = tree_.read(path);
  if (!file.ok()) return absl::NotFoundError(fmt::format("{} is not recorded", path.substr(1)));
  if (file.text.compare(0, kFailed.size(), kFailed) != 0) return file.text;
  return absl::UnknownError(printable(trimmed(std::string_view(file.text).substr(kFailed.size()))));
}

absl::StatusOr<std::string> System::observe(const std::string& name, const Ask& ask) {
  // Several checks use the same fact: the child process runs once.
  if (const auto known = answers_.find(name); known != answers_.end()) return known->second;
  const std::string path = "/observed/" + name;
  // A separate process runs it: a library that crashes or blocks in a probe must not end the report.
  absl::StatusOr<std::string> answer =
      is_live() ? run_in_subprocess(ask, {.timeout = kObserveDeadline}) : recorded(path);
  if (is_live()) {
    // All errors have one kind, so that a recording gives the same answer.
    if (!answer.ok()) answer = absl::UnknownError(printable(trimmed(message_of(answer.status()))));
    tree_.add_to_recording(path, answer.ok() ? *answer : fmt::format("{}{}\n", kFailed, message_of(answer.status())));
  }
  return answers_.emplace(name, std::move(answer)).first->second;
}

}  // namespace gradrail::tools::doctor
