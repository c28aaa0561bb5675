// The attributes of network cards in /sys: an input has the content of one file in each line.
#include <cmath>
#include <memory>
#include <vector>

#include "base/check.h"
#include "tests/fuzz/fuzz.h"
#include "topology/discover/live.h"

namespace {

constexpr const char* kFiles[] = {
    "class/infiniband/mlx5_0/ports/1/state",
    "class/infiniband/mlx5_0/ports/1/rate",
    "class/infiniband/mlx5_0/ports/1/link_layer",
    "class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0",
    "class/net/eth0/operstate",
    "class/net/eth0/carrier",
    "class/net/eth0/speed",
    "class/net/eth0/address",
    "class/net/eth0/type",
};

struct Sys {
  gradrail::fuzz::MemoryFolder folder;
  std::vector<std::unique_ptr<gradrail::fuzz::MemoryFile>> files;

  Sys() {
    for (const char* name : kFiles) {
      files.push_back(std::make_unique<gradrail::fuzz::MemoryFile>());
      folder.link(name, *files.back());
    }
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace gradrail::topology;
  static const Sys sys;
  std::string_view text = gradrail::fuzz::text_of(data, bytes);
  for (const auto& file : sys.files) {
    const std::string_view line = text.substr(0, text.find('\n'));
    file->assign(line);
    text.remove_prefix(std::min(text.size(), line.size() + 1));
  }
  Machine machine;
  add_live_facts(sys.folder.path(), machine);
  for (const Nic& nic : machine.nics) {
    GRADRAIL_CHECK(gradrail::fuzz::is_printable(nic.name) && gradrail::fuzz::is_printable(nic.interface) &&
                   gradrail::fuzz::is_printable(nic.address));
    for (const NicPort& port : nic.ports) GRADRAIL_CHECK(std::isfinite(port.gbit_per_s) && port.gbit_per_s >= 0);
  }
  return 0;
}
