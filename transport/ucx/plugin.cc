// The entry point of the plug-in.
#include "transport/builtin_plugin.h"

#include <ucp/api/ucp.h>

#include <string>

#include "transport/ucx/context.h"

namespace {

const char* library_name() {
  static const std::string name = std::string("UCX ") + ucp_get_version_string();
  return name.c_str();
}

}  // namespace

GRADRAIL_PLUGIN_EXPORT const gradrail::transport::BuiltinPlugin* gradrail_builtin_plugin() {
  static const gradrail::transport::BuiltinPlugin plugin = {.library = library_name(),
                                                            .open = &gradrail::transport::ucx::open};
  return &plugin;
}
