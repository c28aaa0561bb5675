#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "tests/simulation/scheduler.h"

namespace gradrail::simulation {

/// The faults that a disk adds to the calls of a process.
enum class DiskFault : uint8_t { lost_write, torn_write, misdirected_write, unsynced, write_error, read_error };
constexpr size_t kDiskFaults = 6;

/// The disk below one folder, which all servers share. The bytes are in a folder of the kernel in memory. This class
/// records what a loss of power may undo: bytes without fsync, names without an fsync of the folder.
class Disk {
 public:
  static Disk& instance();
  void begin(std::string folder, uint64_t seed);

  // The calls of the C library. Paths outside of the folder, and calls outside of simulated threads, are the kernel's.
  int open(const char* path, int flags, int mode);
  ssize_t read(int fd, void* target, size_t bytes);
  ssize_t write(int fd, const void* source, size_t bytes);
  int close(int fd);
  int fsync(int fd);
  int rename(const char* from, const char* to);
  int unlink(const char* path);

  // Faults.
  /// Chance in 1000 of a fault at each call from now on.
  void set_rate(DiskFault fault, uint32_t per_mille) { rates_[static_cast<size_t>(fault)] = per_mille; }
  void set_full(bool full) { is_full_ = full; }
  /// The host of these processes loses power: what it has not synced may be gone.
  void lose_power(const std::function<bool(ProcessId)>& is_of_host);
  /// Turns one bit of a file. False: there is no file.
  bool rot();
  uint64_t count(DiskFault fault) const { return counts_[static_cast<size_t>(fault)]; }
  uint64_t undone() const { return undone_; }
  /// Whether any fault may have damaged a synced file, or hidden it for a moment.
  bool has_damage() const { return has_damage_; }

 private:
  struct File {
    std::string path;
    std::string synced;
    bool is_dirty = false;
    ProcessId writer = 0;
  };
  using FileRef = std::shared_ptr<File>;
  struct NameChange {
    ProcessId process = 0;
    std::string from, to;    ///< to "": removed
    FileRef file, replaced;  ///< replaced: what the new name held before
    std::string content;     ///< of a removed file
  };

  bool draws(DiskFault fault);
  FileRef of_fd(int fd);
  bool is_ours(const char* path) const;
  void undo(const NameChange& change);

  std::string folder_;
  Random random_{0};
  std::array<uint32_t, kDiskFaults> rates_ = {};
  std::array<uint64_t, kDiskFaults> counts_ = {};
  bool is_full_ = false;
  bool has_damage_ = false;
  uint64_t undone_ = 0;
  std::map<int, FileRef> open_files_;
  std::map<int, ProcessId> open_folders_;
  std::map<std::string, FileRef> files_;
  std::deque<NameChange> unsynced_names_;
};

}  // namespace gradrail::simulation
