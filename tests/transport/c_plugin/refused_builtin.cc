// Plug-ins with the built-in entry point that cannot be used; one object for each value of REFUSED.
#include "base/log.h"
#include "transport/builtin_plugin.h"

namespace {

using gradrail::transport::BuiltinPlugin;

[[maybe_unused]] constexpr BuiltinPlugin kOtherVersion{.version = gradrail::transport::kBuiltinPluginVersion + 1};
[[maybe_unused]] constexpr BuiltinPlugin kOtherBuild{.build = "cxxabi 1, another compiler"};
[[maybe_unused]] constexpr BuiltinPlugin kNoDevice{
    .open =
        [](const gradrail::transport::OpenOptions&) -> absl::StatusOr<std::unique_ptr<gradrail::transport::Context>> {
      gradrail::log_warning("no device of this kind");
      return absl::NotFoundError("no device of this kind");
    }};

}  // namespace

GRADRAIL_PLUGIN_EXPORT const BuiltinPlugin* gradrail_builtin_plugin() {
#if REFUSED == 1
  return &kOtherVersion;
#elif REFUSED == 2
  return &kOtherBuild;
#elif REFUSED == 3
  return &kNoDevice;
#else
  return nullptr;
#endif
}
