#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "tools/doctor/examine.h"

namespace gradrail::tools::doctor {

/// A recorded machine, as a table of its files; on disk only while it is examined.
class RecordedHost {
 public:
  RecordedHost& write(const std::string& path, std::string_view text);  ///< a line end is added
  RecordedHost& write_bytes(const std::string& path, std::string bytes);
  RecordedHost& link(const std::string& path, const std::string& target);
  /// The file or link, and everything below it.
  RecordedHost& remove(const std::string& path);

  /// Puts it into a folder that is not there yet.
  void save(const std::string& folder) const;
  Report examine(const std::vector<std::string>& required = {}) const;

 private:
  std::map<std::string, std::string> files_;
  std::map<std::string, std::string> links_;
};

/// The system with the files of a folder. The files in its folder observed/ are the answers of libraries; "failed: " in
/// front marks an error.
System system_of(const std::string& folder);

/// A path that does not exist yet. The destructor removes the folder there.
class Scratch {
 public:
  Scratch();
  ~Scratch();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Two H100 GPUs with open kernel modules and CUDA 13. Each GPU shares a switch with a ConnectX-7: mlx5_0 is on
/// InfiniBand (NDR), mlx5_1 on Ethernet with RoCE v2. Linux 6.1, two NUMA nodes.
RecordedHost healthy_host();

/// 4 KiB of PCI configuration space. `acs_control` is the control word of Access Control Services (ACS); without a
/// value the device has no ACS.
std::string config_space(std::optional<uint16_t> acs_control);

/// The lines of /proc/self/limits that the checks read.
std::string limits(std::string_view memlock);

/// Fails the test when there is none.
Check check_in(const Report& report, const std::string& name);

}  // namespace gradrail::tools::doctor
