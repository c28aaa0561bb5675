#include "tools/doctor/tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/file_descriptor.h"
#include "base/output_file.h"
#include "base/read_file.h"
#include "base/status.h"
#include "fmt/format.h"
#include "tools/doctor/text.h"

namespace gradrail::tools::doctor {
namespace {

namespace fs = std::filesystem;

/// More than any file of the kernel's that is read here; what is larger is no such file.
constexpr size_t kMostBytes = 256 << 10;
/// More than any folder of the kernel's has that is listed here.
constexpr size_t kMostNames = 8192;
/// Limit of links, the same as the kernel's.
constexpr int kMostLinks = 40;

std::deque<std::string> parts_of(const std::string& path) { return absl::StrSplit(path, '/', absl::SkipEmpty()); }

std::string target_of(const std::string& path) {
  std::array<char, PATH_MAX> target;
  // Both 0 and -1 mean that there is no target. readlink() adds no zero byte.
  const ssize_t bytes = readlink(path.c_str(), target.data(), target.size());
  return bytes > 0 ? std::string(target.data(), static_cast<size_t>(bytes)) : "";
}

FileText read_descriptor(int fd) {
  struct stat about {};
  if (fstat(fd, &about) != 0) return {.error = errno};
  if (S_ISDIR(about.st_mode)) return {.error = EISDIR};
  // A pipe would wait for a writer, a device may do anything.
  if (!S_ISREG(about.st_mode)) return {.error = EINVAL};
  std::optional<std::string> text = read_up_to(fd, kMostBytes);
  if (!text) return {.error = errno};
  return {.text = *std::move(text)};
}

FileText read_file(const std::string& path) {
  // O_NOFOLLOW: the path is resolved, so a link at its end has replaced the file in between.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW));
  return file ? read_descriptor(file.get()) : FileText{.error = errno};
}

/// Devices are separated from files before they are opened: opening some does something.
bool is_openable(const std::string& path, int& error) {
  struct stat about {};
  if (lstat(path.c_str(), &about) != 0) {
    error = errno;
    return false;
  }
  error = S_ISDIR(about.st_mode) ? EISDIR : EINVAL;
  return S_ISREG(about.st_mode);
}

}  // namespace

absl::StatusOr<Tree> Tree::open(const std::string& root) {
  if (root.empty()) return Tree("");
  std::error_code error;
  if (fs::is_directory(root, error)) return Tree(root);
  return absl::NotFoundError(fmt::format("--root {}: no folder ({}); name one that `gradrail doctor --record` made",
                                         root, error ? error.message() : std::string("something else is there")));
}

absl::Status Tree::record_to(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    return absl::FailedPreconditionError(
        fmt::format("--record {}: {}; name a folder that can be made", folder, error.message()));
  }
  // create_directories() also accepts a folder that exists. Old files in it would mix with the new ones.
  if (!fs::is_empty(folder, error) || error) {
    return absl::AlreadyExistsError(fmt::format("--record {}: not empty; name a new folder", folder));
  }
  if (const absl::Status usable = check_output_folder(folder); !usable.ok())
    return absl::Status(usable.code(), fmt::format("--record {}", message_of(usable)));
  record_ = folder;
  return absl::OkStatus();
}

Tree::Place Tree::resolve(const std::string& path, bool follow_last) {
  // Links are followed here, not by the kernel: an absolute target has to stay inside the root.
  std::deque<std::string> pending = parts_of(path);
  std::vector<std::string> done;
  int links = 0;
  while (!pending.empty()) {
    const std::string part = pending.front();
    pending.pop_front();
    if (part == ".") continue;
    if (part == "..") {
      // The result follows the kernel: the parent of the root is the root.
      if (!done.empty()) done.pop_back();
      continue;
    }
    done.push_back(part);
    const std::string here = "/" + absl::StrJoin(done, "/");
    struct stat about {};
    if (lstat((root_ + here).c_str(), &about) != 0) return {here, errno};
    if (!S_ISLNK(about.st_mode) || (pending.empty() && !follow_last)) continue;
    if (++links > kMostLinks) return {here, ELOOP};
    const std::string target = target_of(root_ + here);
    record_link(here, target);
    const std::deque<std::string> next = parts_of(target);
    pending.insert(pending.begin(), next.begin(), next.end());
    done.pop_back();
    if (!target.empty() && target.front() == '/') done.clear();
  }
  return {"/" + absl::StrJoin(done, "/"), 0};
}

FileText Tree::read(const std::string& path) {
  const Place place = resolve(path, /*follow_last=*/true);
  if (place.error != 0) return {.error = place.error};
  int error = 0;
  // Two steps, lstat() and then open(): read_descriptor() repeats the check, since the file can change in between.
  if (!is_openable(root_ + place.path, error)) return {.error = error};
  FileText file = read_file(root_ + place.path);
  if (file.ok()) add_to_recording(place.path, file.text);
  return file;
}

std::string Tree::line(const std::string& path) {
  const std::string text = read(path).text;
  return printable(trimmed(std::string_view(text).substr(0, text.find('\n'))));
}

std::optional<uint64_t> Tree::number(const std::string& path, int base) { return number_of(line(path), base); }

std::vector<std::string> Tree::names(const std::string& folder) {
  const Place place = resolve(folder, /*follow_last=*/true);
  if (place.error != 0) return {};
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(opendir((root_ + place.path).c_str()), &closedir);
  if (listing == nullptr) return {};
  record_folder(place.path);
  std::vector<std::string> names;
  while (const dirent* entry = readdir(listing.get())) {
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    names.push_back(name);
    if (names.size() >= kMostNames) break;
  }
  // readdir() has no order, and a recording must give the same report as the host.
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) exists(place.path + "/" + name);  // adds them to the recording
  return names;
}

bool Tree::exists(const std::string& path) {
  const Place place = resolve(path, /*follow_last=*/false);
  if (place.error != 0) return false;
  // A live tree without a recording ends here: the rest only records the existing files.
  if (record_.empty()) return true;
  struct stat about {};
  if (lstat((root_ + place.path).c_str(), &about) != 0) return false;
  if (S_ISLNK(about.st_mode)) {
    record_link(place.path, target_of(root_ + place.path));
  } else if (S_ISDIR(about.st_mode)) {
    record_folder(place.path);
  } else if (std::error_code error; !fs::exists(record_ + place.path, error)) {
    add_to_recording(place.path, "");  // records its existence; the reader adds the content
  }
  return true;
}

bool Tree::is_folder(const std::string& path) {
  const Place place = resolve(path, /*follow_last=*/true);
  struct stat about {};
  if (place.error != 0 || lstat((root_ + place.path).c_str(), &about) != 0 || !S_ISDIR(about.st_mode)) return false;
  record_folder(place.path);
  return true;
}

std::string Tree::link(const std::string& path) {
  const Place place = resolve(path, /*follow_last=*/false);
  if (place.error != 0) return "";
  std::string target = target_of(root_ + place.path);
  if (!target.empty()) record_link(place.path, target);
  return target;
}

std::string Tree::link_name(const std::string& path) {
  const std::string target = link(path);
  return printable(target.substr(target.rfind('/') == std::string::npos ? 0 : target.rfind('/') + 1));
}

bool Tree::make_room(const std::string& path) {
  // The first failed write stops the recording: a full disk would give thousands of equal errors.
  if (record_.empty() || !recording_.ok()) return false;
  std::error_code error;
  fs::create_directories(fs::path(record_ + path).parent_path(), error);
  if (error) recording_ = absl::FailedPreconditionError(fmt::format("--record {}: {}", record_, error.message()));
  return !error;
}

void Tree::record_folder(const std::string& path) { make_room(path + "/."); }

void Tree::record_link(const std::string& path, const std::string& target) {
  std::error_code error;  // symlink() below finds the same error and reports it
  // A link is reached over many paths, and symlink() refuses the second one with EEXIST.
  if (!make_room(path) || fs::is_symlink(record_ + path, error)) return;
  if (symlink(target.c_str(), (record_ + path).c_str()) != 0) {
    recording_ = absl::FailedPreconditionError(fmt::format("--record {}{}: {}", record_, path, std::strerror(errno)));
  }
}

void Tree::add_to_recording(const std::string& path, std::string_view text) {
  if (!make_room(path)) return;
  const absl::Status written = write_file(record_ + path, text, WriteMode::replace);
  if (!written.ok()) recording_ = absl::FailedPreconditionError(fmt::format("--record {}", message_of(written)));
}

}  // namespace gradrail::tools::doctor
