#include "bench/driver/program.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "base/file_descriptor.h"
#include "base/read_file.h"
#include "base/subprocess.h"
#include "bench/driver/children.h"
#include "fmt/format.h"

namespace gradrail::bench {
namespace {

constexpr int kNotFound = 127;  // exit code of shells

/// Opens a file for the output, which is read at the end, because a pipe could fill.
FileDescriptor open_output(const char* name) { return FileDescriptor(memfd_create(name, MFD_CLOEXEC)); }

std::string text_of(const FileDescriptor& output) {
  lseek(output.get(), 0, SEEK_SET);
  return read_up_to(output.get(), SIZE_MAX).value_or("");
}

[[noreturn]] void become(const std::vector<std::string>& words, int output, int complaints) {
  std::vector<char*> arguments;
  // This allocates after a fork. It is safe because the parent had one thread, so that no lock is held (children.h).
  arguments.reserve(words.size() + 1);
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  // A program that prompts gets an end of file instead of the user's terminal.
  const int nothing = open("/dev/null", O_RDONLY);
  dup2(nothing, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(complaints, STDERR_FILENO);
  // No shell: file names with spaces need no quotation.
  execvp(arguments[0], arguments.data());
  _exit(kNotFound);
}

}  // namespace

absl::StatusOr<std::string> run_program(const std::vector<std::string>& words) {
  const FileDescriptor output = open_output("output"), complaints = open_output("complaints");
  if (!output || !complaints) return absl::ResourceExhaustedError("no files for its output (ulimit -n)");
  const pid_t child = fork_child();
  if (child < 0) return absl::ResourceExhaustedError("no process could be started (ulimit -u)");
  if (child == 0) become(words, output.get(), complaints.get());
  const int status = wait_child(child);
  // The output counts only if the program succeeded; otherwise its last line states the reason.
  if (status == 0) return text_of(output);
  const std::string said = last_line(text_of(complaints));
  return absl::InternalError(fmt::format("{} failed ({}){}{}", words.front(), describe_exit(status),
                                         said.empty() ? "" : ": ", said.empty() ? last_line(text_of(output)) : said));
}

std::string peers_folder() { return (program_folder().parent_path() / "bench").string(); }

std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return access(name.c_str(), X_OK) == 0 ? name : "";
  const char* const path = std::getenv("PATH");
  std::string folders = path == nullptr ? "/usr/bin:/bin" : path;
  for (size_t start = 0; start <= folders.size();) {
    const size_t end = std::min(folders.find(':', start), folders.size());
    std::string candidate = fmt::format("{}/{}", folders.substr(start, end - start), name);
    // An empty entry of PATH is the current folder: programs from there are not run.
    if (end > start && access(candidate.c_str(), X_OK) == 0) return candidate;
    start = end + 1;
  }
  return "";
}

std::string last_line(const std::string& text) {
  const size_t end = text.find_last_not_of(" \n");
  if (end == std::string::npos) return "";
  const size_t start = text.rfind('\n', end);
  return text.substr(start == std::string::npos ? 0 : start + 1, end - (start == std::string::npos ? -1 : start));
}

}  // namespace gradrail::bench
