#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"

namespace gradrail::fuzz {

bool is_printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

void check_refusal(const absl::Status& status, absl::StatusCode code, std::string_view object) {
  const std::string_view text = message_of(status);
  if (status.code() == code && !status.ok() && text.find(object) != std::string_view::npos) return;
  std::fprintf(stderr, "refused with \"%s\", but the code must be %d and the text must contain \"%s\"\n",
               status.ToString().c_str(), static_cast<int>(code), std::string(object).c_str());
  std::abort();
}

MemoryFile::MemoryFile()
    : descriptor_(memfd_create("gradrail-fuzz", MFD_CLOEXEC)), path_(fmt::format("/proc/self/fd/{}", descriptor_)) {
  GRADRAIL_CHECK(descriptor_ >= 0);
}

void MemoryFile::assign(std::string_view content) {
  // The truncation first: a decoder must not see bytes of the input before.
  GRADRAIL_CHECK(ftruncate(descriptor_, 0) == 0);
  GRADRAIL_CHECK(pwrite(descriptor_, content.data(), content.size(), 0) == static_cast<ssize_t>(content.size()));
}

MemoryFolder::MemoryFolder() {
  std::error_code ignored;
  const bool shared = std::filesystem::is_directory("/dev/shm", ignored);
  path_ = (shared ? "/dev/shm" : std::filesystem::temp_directory_path().string()) + "/gradrail-fuzz-XXXXXX";
  GRADRAIL_CHECK(mkdtemp(path_.data()) != nullptr);
}

MemoryFolder::~MemoryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void MemoryFolder::link(const std::string& name, const MemoryFile& file) {
  const std::filesystem::path path = path_ + "/" + name;
  std::filesystem::create_directories(path.parent_path());
  std::filesystem::create_symlink(file.path(), path);
}

}  // namespace gradrail::fuzz
