#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/doctor/text.h"

namespace gradrail::tools::doctor {

/// Named values of one object, as text. A value that is not known is "".
class Facts {
 public:
  const std::string& operator[](std::string_view name) const {
    static const std::string kUnknown;
    const auto found = values_.find(name);
    return found == values_.end() ? kUnknown : found->second;
  }
  bool has(std::string_view name) const { return !(*this)[name].empty(); }
  std::optional<uint64_t> number(std::string_view name) const { return number_of((*this)[name]); }

  void set(const std::string& name, std::string value) { values_[name] = std::move(value); }
  void set(const std::string& name, uint64_t value) { set(name, std::to_string(value)); }
  /// "yes" or unknown.
  void set_if(const std::string& name, bool holds) { set(name, holds ? "yes" : ""); }

  /// Replaces each {name} by the value of that name, also where it is "". Names without a value stay as they are.
  std::string fill(const std::string& text) const;

 private:
  std::map<std::string, std::string, std::less<>> values_;
};

/// The facts for the checks. Each object is read once, so that all checks use the same values.
struct Machine {
  Facts host;
  std::vector<Facts> rdma_devices;
  std::vector<Facts> rdma_ports;
  std::vector<Facts> gpus;
  std::vector<Facts> cards;        ///< PCI functions of the GPUs and RDMA devices
  std::vector<Facts> bridges;      ///< PCI bridges above the cards
  std::vector<Facts> rdma_limits;  ///< limits of the cgroups of this process
  std::vector<Facts> cgroup_limits;
  std::vector<Facts> servers;  ///< the parameter servers of --cluster or --ps_hosts
};

}  // namespace gradrail::tools::doctor
