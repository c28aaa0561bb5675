#include "bench/driver/program.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "bench/driver/children.h"
#include "fmt/format.h"

namespace gradrail::bench {
namespace {

constexpr int kNotFound = 127;  // as shells say it

/// A program's output, read when it has ended: a pipe could fill.
class Written {
 public:
  explicit Written(const char* name) : fd_(memfd_create(name, MFD_CLOEXEC)) {}
  ~Written() {
    if (fd_ >= 0) close(fd_);
  }
  Written(const Written&) = delete;
  Written& operator=(const Written&) = delete;

  int fd() const { return fd_; }

  std::string text() const {
    std::string all;
    char buffer[4096];
    for (ssize_t count = 0; (count = pread(fd_, buffer, sizeof(buffer), static_cast<off_t>(all.size()))) > 0;)
      all.append(buffer, static_cast<size_t>(count));
    return all;
  }

 private:
  const int fd_;
};

[[noreturn]] void become(const std::vector<std::string>& words, int output, int complaints) {
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const int nothing = open("/dev/null", O_RDONLY);
  dup2(nothing, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(complaints, STDERR_FILENO);
  execvp(arguments[0], arguments.data());
  _exit(kNotFound);
}

}  // namespace

absl::StatusOr<std::string> run_program(const std::vector<std::string>& words) {
  const Written output("output"), complaints("complaints");
  if (output.fd() < 0 || complaints.fd() < 0)
    return absl::ResourceExhaustedError("no files for its output (ulimit -n)");
  const pid_t child = fork_child();
  if (child < 0) return absl::ResourceExhaustedError("no process could be started (ulimit -u)");
  if (child == 0) become(words, output.fd(), complaints.fd());
  const int status = wait_child(child);
  if (status == 0) return output.text();
  const std::string said = last_line(complaints.text());
  return absl::InternalError(fmt::format("{} failed ({}){}{}", words.front(), how_it_ended(status),
                                         said.empty() ? "" : ": ", said.empty() ? last_line(output.text()) : said));
}

std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return access(name.c_str(), X_OK) == 0 ? name : "";
  const char* const path = std::getenv("PATH");
  std::string folders = path == nullptr ? "/usr/bin:/bin" : path;
  for (size_t start = 0; start <= folders.size();) {
    const size_t end = std::min(folders.find(':', start), folders.size());
    std::string candidate = fmt::format("{}/{}", folders.substr(start, end - start), name);
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
