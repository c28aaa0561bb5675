// Plug-ins with the built-in entry point that must not be used; one object for each value of REFUSED.
#include "transport/builtin_plugin.h"

namespace {

using gradrail::transport::BuiltinPlugin;

[[maybe_unused]] constexpr BuiltinPlugin kOtherVersion{.version = gradrail::transport::kBuiltinPluginVersion + 1};
[[maybe_unused]] constexpr BuiltinPlugin kOtherBuild{.build = "cxxabi 1, another compiler"};

}  // namespace

GRADRAIL_PLUGIN_EXPORT const BuiltinPlugin* gradrail_builtin_plugin() {
#if REFUSED == 1
  return &kOtherVersion;
#elif REFUSED == 2
  return &kOtherBuild;
#else
  return nullptr;
#endif
}
