#include "transport/common/native_error.h"

#include <sys/resource.h>

#include <string>

#include "fmt/format.h"

namespace gradrail::transport::common {
namespace {

std::string locked_memory_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "unknown";
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : fmt::format("{} KiB", limit.rlim_cur / 1024);
}

}  // namespace

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
