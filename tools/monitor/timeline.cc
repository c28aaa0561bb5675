#include "tools/monitor/timeline.h"

#include <string_view>

#include "base/status.h"
#include "fmt/format.h"
#include "tools/monitor/chrome_trace.h"

namespace gradrail::tools {
namespace {

/// The file is one of those that are usually checkpoints.
/// ReplacementFile names checkpoints in its errors. The user gave another flag.
absl::Status about_timeline(const absl::Status& status) {
  if (status.ok()) return status;
  std::string_view why = message_of(status);
  constexpr std::string_view kUsualUse = "checkpoint ";
  if (why.starts_with(kUsualUse)) why.remove_prefix(kUsualUse.size());
  return absl::Status(status.code(), fmt::format("--timeline_filename: {}", why));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Timeline>> Timeline::create(const std::string& path, bool is_chief) {
  // Early: the name is checked before the run, not after hours of training.
  std::unique_ptr<Timeline> timeline(new Timeline(path));
  if (is_chief) GRADRAIL_RETURN_IF_ERROR(timeline->create_file());
  return timeline;
}

absl::Status Timeline::create_file() {
  absl::StatusOr<ReplacementFile> file = ReplacementFile::create(path_, "timeline");
  if (!file.ok()) return about_timeline(file.status());
  file_ = std::make_unique<ReplacementFile>(*std::move(file));
  return absl::OkStatus();
}

absl::Status Timeline::finish(Client& client) {
  if (!client.is_chief()) return client.traces().upload();
  // The first chief can leave, so that another worker finishes the run without a file.
  if (file_ == nullptr) GRADRAIL_RETURN_IF_ERROR(create_file());
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<TaskTrace> traces, client.traces().gather());
  const std::string text = chrome_trace(traces);
  const absl::Status written = file_->write(text.data(), text.size());
  return about_timeline(written.ok() ? file_->commit() : written);
}

}  // namespace gradrail::tools
