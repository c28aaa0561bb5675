#include "tools/doctor/system.h"

#include <filesystem>

#include "base/read_file.h"
#include "base/resource_limits.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "tools/doctor/text.h"

namespace gradrail::tools::doctor {
namespace {

namespace fs = std::filesystem;

/// Loading CUDA on a host with eight GPUs and no persistence daemon takes this long.
constexpr Duration kObserveDeadline = std::chrono::seconds(30);

}  // namespace

System::System()
    : System("", [](const std::string&, const Ask& ask) -> absl::StatusOr<std::string> {
        absl::StatusOr<std::string> answer = run_in_subprocess(ask, {.timeout = kObserveDeadline});
        if (answer.ok()) return answer;
        return absl::Status(answer.status().code(), printable(trimmed(message_of(answer.status()))));
      }) {}

std::string System::text(const std::string& path) const { return read_system_file(file(path)); }

std::string System::line(const std::string& path) const { return printable(trimmed(first_line(file(path)))); }

std::optional<uint64_t> System::number(const std::string& path, int base) const { return number_of(line(path), base); }

std::vector<std::string> System::names(const std::string& folder) const { return names_in(file(folder)); }

bool System::exists(const std::string& path) const {
  std::error_code error;
  return fs::exists(fs::symlink_status(file(path), error));
}

bool System::is_folder(const std::string& path) const {
  std::error_code error;
  return fs::is_directory(file(path), error);
}

std::string System::link(const std::string& path) const {
  std::error_code error;
  return fs::read_symlink(file(path), error).string();
}

std::string System::link_name(const std::string& path) const {
  return printable(fs::path(link(path)).filename().string());
}

}  // namespace gradrail::tools::doctor
