// Plug-ins that must not be believed; one object for each value of BROKEN.
#include "transport/plugin.h"

namespace {

using gradrail::transport::Plugin;

constexpr Plugin kOtherVersion{.version = gradrail::transport::kPluginVersion + 1};
constexpr Plugin kOtherBuild{.build = "cxxabi 1, another compiler"};

}  // namespace

#if BROKEN == 1
GRADRAIL_PLUGIN_EXPORT const Plugin* gradrail_transport_plugin() { return &kOtherVersion; }
#elif BROKEN == 2
GRADRAIL_PLUGIN_EXPORT const Plugin* gradrail_transport_plugin() { return &kOtherBuild; }
#elif BROKEN == 3
GRADRAIL_PLUGIN_EXPORT const Plugin* gradrail_transport_plugin() { return nullptr; }
#else
GRADRAIL_PLUGIN_EXPORT void something_else() {}
#endif
