#pragma once

#include <cstdint>
#include <memory>

#include "absl/base/config.h"
#include "absl/status/statusor.h"
#include "transport/context.h"
#include "transport/registry.h"

namespace gradrail::transport {

// The entry point of plug-ins that are built from this tree: C++ on both sides. Third parties use gradrail/transport.h.

/// Changes with every change to the headers that a built-in plug-in includes.
inline constexpr uint32_t kBuiltinPluginVersion = 5;

#define GRADRAIL_PLUGIN_TEXT_(x) #x
#define GRADRAIL_PLUGIN_TEXT(x) GRADRAIL_PLUGIN_TEXT_(x)
#ifdef ABSL_LTS_RELEASE_VERSION
#define GRADRAIL_PLUGIN_ABSL GRADRAIL_PLUGIN_TEXT(ABSL_LTS_RELEASE_VERSION)
#else
#define GRADRAIL_PLUGIN_ABSL "head"
#endif
/// The entry point is C, its objects are C++: both sides must agree on the compiler's interface, the standard library's
/// strings and Abseil's release.
inline constexpr char kBuiltinPluginBuild[] = "cxxabi " GRADRAIL_PLUGIN_TEXT(
    __GXX_ABI_VERSION) ", cxx11 strings " GRADRAIL_PLUGIN_TEXT(_GLIBCXX_USE_CXX11_ABI) ", absl " GRADRAIL_PLUGIN_ABSL;

/// Result of the entry point; valid until the process exits. version and build are the first fields in every version:
/// they are checked before any other field is used.
struct BuiltinPlugin {
  uint32_t version = kBuiltinPluginVersion;
  const char* build = kBuiltinPluginBuild;
  const char* library = "";  ///< name for people of the library behind it, with its version: "libfabric 1.17.0"
  absl::StatusOr<std::unique_ptr<Context>> (*open)(const OpenOptions& options) = nullptr;
};

using BuiltinPluginEntry = const BuiltinPlugin* (*)();
inline constexpr char kBuiltinPluginEntry[] = "gradrail_builtin_plugin";

}  // namespace gradrail::transport

/// Precedes the definition of the entry point: all other symbols of a plug-in are hidden.
#define GRADRAIL_PLUGIN_EXPORT extern "C" __attribute__((visibility("default")))
