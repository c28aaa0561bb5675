// The entry point of the plug-in.
#include "transport/builtin_plugin.h"

#include <rdma/fabric.h>

#include <string>

#include "fmt/format.h"
#include "transport/ofi/context.h"

GRADRAIL_PLUGIN_EXPORT const gradrail::transport::BuiltinPlugin* gradrail_builtin_plugin() {
  static const std::string library = fmt::format("libfabric {}.{}", FI_MAJOR(fi_version()), FI_MINOR(fi_version()));
  static const gradrail::transport::BuiltinPlugin plugin = {.library = library.c_str(),
                                                            .open = &gradrail::transport::ofi::open};
  return &plugin;
}
