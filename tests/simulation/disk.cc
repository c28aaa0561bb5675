#include "tests/simulation/disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

namespace gradrail::simulation {
namespace {

constexpr size_t kSector = 512;

// The kernel's calls: those of the C library lead back to this file.
int kernel_open(const char* path, int flags, int mode) {
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}
int kernel_close(int fd) { return static_cast<int>(syscall(SYS_close, fd)); }

std::string content_of(const std::string& path) {
  std::string content;
  const int fd = kernel_open(path.c_str(), O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return content;
  char part[4096];
  for (ssize_t got = 0; (got = syscall(SYS_read, fd, part, sizeof(part))) > 0;)
    content.append(part, static_cast<size_t>(got));
  kernel_close(fd);
  return content;
}

void set_content(const std::string& path, const std::string& content) {
  const int fd = kernel_open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return;
  syscall(SYS_write, fd, content.data(), content.size());
  kernel_close(fd);
}

}  // namespace

Disk& Disk::instance() {
  static auto* const disk = new Disk;
  return *disk;
}

void Disk::begin(std::string folder, uint64_t seed) {
  folder_ = std::move(folder);
  random_ = Random(seed, 3);
}

bool Disk::is_ours(const char* path) const {
  return Scheduler::instance().in_fiber() && !folder_.empty() && std::string_view(path).starts_with(folder_);
}

bool Disk::draws(DiskFault fault) {
  if (random_.below(1000) >= rates_[static_cast<size_t>(fault)]) return false;
  ++counts_[static_cast<size_t>(fault)];
  static constexpr const char* kNames[] = {"lost write",           "torn write",  "misdirected write",
                                           "fsync without effect", "write error", "read error"};
  Scheduler::instance().trace(std::string("fault: disk: ") + kNames[static_cast<size_t>(fault)]);
  if (fault != DiskFault::write_error) has_damage_ = true;
  return true;
}

Disk::FileRef Disk::of_fd(int fd) {
  const auto found = open_files_.find(fd);
  return found == open_files_.end() ? nullptr : found->second;
}

int Disk::open(const char* path, int flags, int mode) {
  const int fd = kernel_open(path, flags, mode);
  if (fd < 0 || !is_ours(path)) return fd;
  const ProcessId process = Scheduler::instance().process();
  if ((flags & O_DIRECTORY) != 0) {
    open_folders_[fd] = process;
    return fd;
  }
  FileRef& file = files_[path];
  if (file == nullptr) {
    file = std::make_shared<File>(File{.path = path, .synced = {}});
    if ((flags & O_CREAT) == 0) file->synced = content_of(path);  // it was there before the first fault
  }
  if ((flags & O_TRUNC) != 0) {
    file->is_dirty = true;
    file->writer = process;
  }
  open_files_[fd] = file;
  return fd;
}

ssize_t Disk::read(int fd, void* target, size_t bytes) {
  if (of_fd(fd) != nullptr && draws(DiskFault::read_error)) {
    errno = EIO;
    return -1;
  }
  return syscall(SYS_read, fd, target, bytes);
}

ssize_t Disk::write(int fd, const void* source, size_t bytes) {
  const FileRef file = of_fd(fd);
  if (file == nullptr) return syscall(SYS_write, fd, source, bytes);
  file->is_dirty = true;
  if (is_full_ || draws(DiskFault::write_error)) {
    errno = is_full_ ? ENOSPC : EIO;
    return -1;
  }
  const auto at = static_cast<uint64_t>(syscall(SYS_lseek, fd, 0, SEEK_CUR));
  if (draws(DiskFault::lost_write)) {
    const std::string zeros(bytes, '\0');
    return syscall(SYS_write, fd, zeros.data(), bytes);
  }
  if (bytes > 1 && draws(DiskFault::torn_write)) {
    std::string torn(static_cast<const char*>(source), bytes);
    const size_t begin = random_.below(bytes);
    std::fill(torn.begin() + static_cast<ptrdiff_t>(begin),
              torn.begin() + static_cast<ptrdiff_t>(std::min(bytes, begin + kSector)), '\0');
    return syscall(SYS_write, fd, torn.data(), bytes);
  }
  if (draws(DiskFault::misdirected_write)) {
    // To another place of this file; the place that was meant stays empty.
    syscall(SYS_pwrite64, fd, source, bytes, at == 0 ? bytes : random_.below(at));
    syscall(SYS_lseek, fd, at + bytes, SEEK_SET);
    if (static_cast<uint64_t>(syscall(SYS_lseek, fd, 0, SEEK_END)) < at + bytes) syscall(SYS_ftruncate, fd, at + bytes);
    syscall(SYS_lseek, fd, at + bytes, SEEK_SET);
    return static_cast<ssize_t>(bytes);
  }
  return syscall(SYS_write, fd, source, bytes);
}

int Disk::close(int fd) {
  open_files_.erase(fd);
  open_folders_.erase(fd);
  return kernel_close(fd);
}

int Disk::fsync(int fd) {
  if (const auto folder = open_folders_.find(fd); folder != open_folders_.end()) {
    if (draws(DiskFault::unsynced)) return 0;
    std::erase_if(unsynced_names_, [&](const NameChange& change) { return change.process == folder->second; });
    return 0;
  }
  const FileRef file = of_fd(fd);
  if (file == nullptr || draws(DiskFault::unsynced)) return 0;
  file->synced = content_of(file->path);
  file->is_dirty = false;
  return 0;
}

int Disk::rename(const char* from, const char* to) {
  const FileRef file = is_ours(from) && files_.contains(from) ? files_[from] : nullptr;
  const int done = static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
  if (done != 0 || file == nullptr) return done;
  const FileRef replaced = files_.contains(to) ? files_[to] : nullptr;
  files_.erase(from);
  files_[to] = file;
  file->path = to;
  unsynced_names_.push_back(
      {.process = Scheduler::instance().process(), .from = from, .to = to, .file = file, .replaced = replaced});
  return 0;
}

int Disk::unlink(const char* path) {
  const FileRef file = is_ours(path) && files_.contains(path) ? files_[path] : nullptr;
  const std::string content = file == nullptr ? "" : content_of(path);
  const int done = static_cast<int>(syscall(SYS_unlinkat, AT_FDCWD, path, 0));
  if (done != 0 || file == nullptr) return done;
  files_.erase(path);
  unsynced_names_.push_back(
      {.process = Scheduler::instance().process(), .from = path, .file = file, .content = content});
  return 0;
}

void Disk::undo(const NameChange& change) {
  if (files_.contains(change.from)) return;  // the name has another file by now
  if (change.to.empty()) {
    set_content(change.from, change.content);
    files_[change.from] = change.file;
  } else if (files_.contains(change.to) && files_[change.to] == change.file) {
    syscall(SYS_renameat2, AT_FDCWD, change.to.c_str(), AT_FDCWD, change.from.c_str(), 0);
    files_.erase(change.to);
    files_[change.from] = change.file;
    change.file->path = change.from;
    if (change.replaced != nullptr) {
      set_content(change.to, change.replaced->synced);
      files_[change.to] = change.replaced;
    }
  }
  ++undone_;
}

void Disk::lose_power(const std::function<bool(ProcessId)>& is_of_host) {
  // A journal keeps the order: the last changes are gone, those before stay.
  size_t keep = random_.below(unsynced_names_.size() + 1);
  std::vector<NameChange> gone;
  std::erase_if(unsynced_names_, [&](const NameChange& change) {
    if (!is_of_host(change.process)) return false;
    if (keep > 0) {
      --keep;
    } else {
      gone.push_back(change);
    }
    return true;
  });
  for (auto change = gone.rbegin(); change != gone.rend(); ++change) undo(*change);
  for (auto& [path, file] : files_) {
    if (!file->is_dirty || !is_of_host(file->writer)) continue;
    std::string content = content_of(path);
    if (content == file->synced) continue;
    content.resize(random_.below(content.size() + 1));
    // Sectors reach the disk in any order.
    for (size_t at = 0; at < content.size(); at += kSector) {
      if (random_.below(3) != 0) continue;
      for (size_t i = at; i < std::min(content.size(), at + kSector); ++i) {
        content[i] = i < file->synced.size() ? file->synced[i] : '\0';
      }
    }
    set_content(path, content);
    file->synced = content;
    file->is_dirty = false;
    ++undone_;
  }
}

bool Disk::rot() {
  std::vector<std::string> paths;
  for (const auto& [path, file] : files_) {
    if (path.ends_with(".ckpt")) paths.push_back(path);
  }
  if (paths.empty()) return false;
  const std::string& path = paths[random_.below(paths.size())];
  std::string content = content_of(path);
  if (content.empty()) return false;
  content[random_.below(content.size())] ^= static_cast<char>(1u << random_.below(8));
  set_content(path, content);
  files_[path]->synced = content;
  has_damage_ = true;
  return true;
}

}  // namespace gradrail::simulation
