#pragma once

#include <cstdint>
#include <memory>

#include "absl/base/config.h"
#include "absl/status/statusor.h"
#include "transport/context.h"
#include "transport/registry.h"

namespace gradrail::transport {

/// Changes with every change to the headers that a plug-in is built against: transport/*.h and what they include.
inline constexpr uint32_t kPluginVersion = 2;

#define GRADRAIL_PLUGIN_TEXT_(x) #x
#define GRADRAIL_PLUGIN_TEXT(x) GRADRAIL_PLUGIN_TEXT_(x)
#ifdef ABSL_LTS_RELEASE_VERSION
#define GRADRAIL_PLUGIN_ABSL GRADRAIL_PLUGIN_TEXT(ABSL_LTS_RELEASE_VERSION)
#else
#define GRADRAIL_PLUGIN_ABSL "head"
#endif
/// The entry point is C, its objects are C++: both sides must agree on the compiler's interface, the standard library's
/// strings and Abseil's release.
inline constexpr char kPluginBuild[] = "cxxabi " GRADRAIL_PLUGIN_TEXT(
    __GXX_ABI_VERSION) ", cxx11 strings " GRADRAIL_PLUGIN_TEXT(_GLIBCXX_USE_CXX11_ABI) ", absl " GRADRAIL_PLUGIN_ABSL;

/// Description of a transport in a shared object. The object is called libgradrail_transport_<name>.so and exports
///
///   extern "C" const gradrail::transport::Plugin* gradrail_transport_plugin();
///
/// The result stays valid until the program ends: plug-ins are never unloaded. version and build come first in every
/// version: they are checked before any other field is used.
struct Plugin {
  uint32_t version = kPluginVersion;
  const char* build = kPluginBuild;
  const char* library = "";  ///< for people: what is behind it, and its version: "libfabric 1.17.0"
  absl::StatusOr<std::unique_ptr<Context>> (*open)(const OpenOptions& options) = nullptr;
};

using PluginEntry = const Plugin* (*)();
inline constexpr char kPluginEntry[] = "gradrail_transport_plugin";

}  // namespace gradrail::transport

/// Before the definition of the entry: everything else in a plug-in is hidden.
#define GRADRAIL_PLUGIN_EXPORT extern "C" __attribute__((visibility("default")))
