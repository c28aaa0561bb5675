#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gradrail::tools::doctor {

/// Groups of checks in the report.
namespace topic {
inline constexpr const char* kGpu = "GPU";
inline constexpr const char* kHost = "host";
inline constexpr const char* kNetwork = "network";
inline constexpr const char* kPci = "PCI";
inline constexpr const char* kRdma = "RDMA";
}  // namespace topic

/// States in the order from harmless to fatal: of several findings the last of these counts.
enum class State : uint8_t {
  none,            ///< state of a row: this object gives no finding
  not_applicable,  ///< nothing here that it could be about
  ok,
  unknown,  ///< the readable facts do not decide it
  warning,  ///< works, but slower than it could or not for everything
  missing,
  broken,
};

/// Name of a state: "not applicable", "ok", …
const char* name_of(State state);

/// Whether a check that depends on it can continue.
constexpr bool holds_up(State state) { return state < State::missing; }

/// Result for one object: a device, or the whole host.
struct Finding {
  State state = State::ok;
  std::string evidence;     ///< observed value and its source
  std::string consequence;  ///< "" when ok
  std::string remedy;       ///< a command or a setting; "" when ok
};

/// The result of a check for people and, as JSON, for programs.
struct Check {
  std::string topic;  ///< groups checks for people: "RDMA"
  std::string name;   ///< never changes: programs use it
  State state = State::ok;
  std::vector<std::string> evidence;
  std::string consequence;
  std::string remedy;
};

/// The worst of the findings gives state, consequence and remedy; evidence is that of all, the worst first. No
/// findings: not applicable.
Check conclude(const std::string& topic, const std::string& name, std::vector<Finding> findings);

/// Result of checks without an object.
Check not_applicable(const std::string& topic, const std::string& name, const std::string& why);

}  // namespace gradrail::tools::doctor
