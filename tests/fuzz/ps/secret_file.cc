#include <sys/stat.h>

#include "base/check.h"
#include "base/status.h"
#include "ps/protocol/security.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  static gradrail::fuzz::MemoryFile file;
  const std::string_view text = gradrail::fuzz::text_of(data, bytes);
  file.assign(text);
  // The first byte selects whether others may read the file.
  const bool open = bytes > 0 && data[0] % 8 == 0;
  GRADRAIL_CHECK(fchmod(file.descriptor(), open ? 0644 : 0600) == 0);
  const absl::StatusOr<std::string> secret = gradrail::read_secret_file(file.path());
  if (!secret.ok()) {
    gradrail::fuzz::check_refusal(secret.status(), absl::StatusCode::kFailedPrecondition, file.path());
    return 0;
  }
  GRADRAIL_CHECK(!open && secret->size() >= 16 && secret->size() <= 4096);
  GRADRAIL_CHECK(text.starts_with(*secret));
  GRADRAIL_CHECK(text.substr(secret->size()).find_first_not_of(" \t\n\v\f\r") == std::string_view::npos);
  return 0;
}
