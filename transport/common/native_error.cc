#include "transport/common/native_error.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace gradrail::transport::common {
namespace {

std::string locked_memory_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "unknown";
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : fmt::format("{} KiB", limit.rlim_cur / 1024);
}

std::string read_environment(const std::string& prefix) {
  constexpr size_t kMost = 6;
  constexpr size_t kMostBytes = 80;  // limit for one variable
  std::vector<std::string> found;
  for (char** each = environ; each != nullptr && *each != nullptr; ++each) {
    const std::string_view variable(*each);
    if (!variable.starts_with(prefix) || variable.find("LOG") != std::string_view::npos) continue;
    std::string text(variable.substr(0, kMostBytes));
    std::replace_if(
        text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c >= 0x7f; }, '?');
    found.push_back(std::move(text));
  }
  std::sort(found.begin(), found.end());
  if (found.size() > kMost) found.resize(kMost);
  return found.empty() ? "" : fmt::format("; the environment has {}", fmt::join(found, ", "));
}

}  // namespace

const std::string& environment_text(const std::string& prefix) {
  static Mutex mutex;
  static std::map<std::string, std::string> texts;
  const MutexLock lock(mutex);
  const auto [place, is_new] = texts.try_emplace(prefix);
  if (is_new) place->second = read_environment(prefix);
  return place->second;
}

absl::Status with_environment(const absl::Status& error, const std::string& prefix) {
  const std::string& text = environment_text(prefix);
  if (error.ok() || text.empty() || error.message().find(text) != absl::string_view::npos) return error;
  return {error.code(), fmt::format("{}{}", message_of(error), text)};
}

absl::Status native_error(std::string_view transport, std::string_view doing, std::string_view text,
                          const ErrorMeaning& meaning) {
  const std::string what = fmt::format("{}: {}: {}", transport, doing, text);
  return {meaning.code, meaning.hint.empty() ? what : fmt::format("{} ({})", what, meaning.hint)};
}

absl::Status locked_memory_error(std::string_view transport, size_t bytes, std::string_view text) {
  return absl::ResourceExhaustedError(fmt::format(
      "{}: register {} bytes: {}; the limit on locked memory is {} and counts each registration (raise it by `ulimit "
      "-l unlimited`, for services LimitMEMLOCK=infinity, for logins memlock in /etc/security/limits.conf)",
      transport, bytes, text, locked_memory_limit()));
}

}  // namespace gradrail::transport::common
