#include "tools/doctor/facts/verbs.h"

#include <dlfcn.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_split.h"
#include "base/status.h"
#include "fmt/format.h"
#include "tools/doctor/text.h"

namespace gradrail::tools::doctor {
namespace {

/// Functions of libibverbs that exist since 2005 (symbol versions IBVERBS_1.0 and 1.1). Loaded on demand, so that the
/// program runs where there is none.
struct Verbs {
  void** (*get_device_list)(int*);
  void (*free_device_list)(void**);
  const char* (*get_device_name)(void*);
  void* (*open_device)(void*);
  int (*close_device)(void*);
  int (*query_port)(void*, uint8_t, void*);
};

/// Begin of struct ibv_port_attr in all versions; the following fields are longer in newer ones.
struct PortAttributes {
  int state;
  int max_mtu;
  int active_mtu;
  std::array<uint8_t, 500> rest;
};

absl::StatusOr<Verbs> load() {
  // The library is not linked: a program that links libibverbs does not start on a host without it.
  void* const library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::NotFoundError(dlerror());
  Verbs verbs{};
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    return function != nullptr;
  };
  if (find(verbs.get_device_list, "ibv_get_device_list") && find(verbs.free_device_list, "ibv_free_device_list") &&
      find(verbs.get_device_name, "ibv_get_device_name") && find(verbs.open_device, "ibv_open_device") &&
      find(verbs.close_device, "ibv_close_device") && find(verbs.query_port, "ibv_query_port"))
    return verbs;
  return absl::NotFoundError("libibverbs.so.1 lacks functions that every version has");
}

/// The verbs' numbers: 1 is 256 bytes, 5 is 4096.
uint64_t bytes_of_mtu(int number) { return number >= 1 && number <= 5 ? uint64_t{128} << number : 0; }

std::string describe(const Verbs& verbs, void* device) {
  constexpr int kMostPorts = 16;
  const std::string name = verbs.get_device_name(device);
  // Some providers fail without setting errno; an old value would name a wrong cause.
  errno = 0;
  void* const context = verbs.open_device(device);
  if (context == nullptr) return fmt::format("device {} {}\n", name, std::strerror(errno));
  std::string text = fmt::format("device {} opened\n", name);
  for (int port = 1; port <= kMostPorts; ++port) {
    PortAttributes attributes{};
    // The first number that is no port ends the list: libibverbs numbers them from 1 without gaps.
    if (verbs.query_port(context, static_cast<uint8_t>(port), &attributes) != 0) break;
    text += fmt::format("port {} {} {} {}\n", name, port, bytes_of_mtu(attributes.max_mtu),
                        bytes_of_mtu(attributes.active_mtu));
  }
  verbs.close_device(context);
  return text;
}

absl::StatusOr<std::string> ask() {
  GRADRAIL_ASSIGN_OR_RETURN(const Verbs verbs, load());
  int count = 0;
  void** const devices = verbs.get_device_list(&count);
  // ENOSYS: the library is there, but the kernel has no verbs interface.
  if (devices == nullptr) return absl::UnavailableError(std::strerror(errno));
  std::string text;
  for (int i = 0; i < count; ++i) text += describe(verbs, devices[i]);
  verbs.free_device_list(devices);
  return text;
}

}  // namespace

absl::StatusOr<VerbsAnswer> probe_verbs(const System& system) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::string text, system.observe("verbs", ask));
  VerbsAnswer answer;
  for (const std::string& line : lines_of(text)) {
    const std::vector<std::string> words = words_of(line);
    if (words.size() >= 3 && words[0] == "device") {
      const size_t reason = line.find(words[1]) + words[1].size();
      answer.opened[printable(words[1])] = words[2] == "opened" ? "" : printable(trimmed(line.substr(reason)));
    }
    if (words.size() == 5 && words[0] == "port") {
      answer.ports[{printable(words[1]), static_cast<int>(number_of(words[2]).value_or(0))}] = {
          number_of(words[3]).value_or(0), number_of(words[4]).value_or(0)};
    }
  }
  return answer;
}

}  // namespace gradrail::tools::doctor
