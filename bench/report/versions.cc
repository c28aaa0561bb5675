#include "bench/report/versions.h"

#include "base/status.h"
#include "bench/driver/subprocess.h"
#include "fmt/format.h"
#include "gpu/compute/blas.h"
#include "gpu/driver/driver.h"
#include "gpu/reduce/nccl.h"
#include "nlohmann/json.hpp"
#include "transport/plugin_loader.h"

namespace gradrail::bench {

nlohmann::json load_libraries() {
  const auto words = [](const auto& found, const auto& name) {
    return found.ok() ? std::string(name(*found)) : fmt::format("none: {}", message_of(found.status()));
  };
  nlohmann::json list;
  for (const char* name : {"ucx", "ofi"})
    list[name] = words(transport::load_plugin(name), [](const transport::Plugin* p) { return p->library; });
  list["cuda"] = words(gpu::Driver::get(), [](const gpu::Driver* d) { return "driver for CUDA " + d->version_text(); });
  list["cublas"] = words(gpu::blas_library(), [](const gpu::BlasLibrary* b) { return b->name; });
  list["nccl"] = words(gpu::nccl_library(), [](const gpu::NcclLibrary* n) { return n->version; });
  return list;
}

nlohmann::json libraries() {
  // A separate process loads them, since some of them start threads when they are loaded, and this process forks.
  Subprocess loads = Subprocess::start({{"do", "load libraries"}});
  // Longer than loading takes on a busy machine. A run without versions is still a run, so this is not an error.
  const absl::StatusOr<nlohmann::json> list = loads.result(Clock::now() + std::chrono::seconds(10));
  return list.ok() ? *list : nlohmann::json{{"unknown", std::string(message_of(list.status()))}};
}

}  // namespace gradrail::bench
