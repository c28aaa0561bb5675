#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "transport/registry.h"

namespace gradrail::transport {

/// A loaded plug-in: a third party's table of C functions (gradrail/transport.h), or one of this tree with an entry in
/// C++ (transport/builtin_plugin.h). Valid until the process exits: plug-ins are never unloaded.
struct Plugin {
  std::string library;  ///< name for people of the library behind it, with its version; may be empty
  std::function<absl::StatusOr<std::unique_ptr<Context>>(const OpenOptions& options)> open;
};

/// Folders searched for plug-ins, in this order: the folder of set_plugin_dir() or else GRADRAIL_PLUGIN_DIR; the
/// program's own folder; lib/gradrail beside it; the install prefix.
std::vector<std::string> plugin_folders();

/// `--plugin-dir`. Call before the first use of the registry.
/// Errors  INVALID_ARGUMENT: not absolute, not a folder, or others may write to it: each file in it can run code in
///         this process.
absl::Status set_plugin_dir(const std::string& folder);

/// Checks GRADRAIL_PLUGIN_DIR; the variable need not be set.
/// Errors  INVALID_ARGUMENT: not absolute, or not a folder.
absl::Status check_plugin_variable();

/// Names of the transports with a file in those folders, sorted; nothing is loaded.
std::vector<std::string> plugin_names();

/// Loads the plug-in once; later calls give the same answer.
/// Errors   NOT_FOUND: no such file; names the folders. FAILED_PRECONDITION: it cannot be loaded. Its version is not
///          supported. Its table is malformed. It is in a named folder, and others can change it.
/// Threads  Any.
absl::StatusOr<const Plugin*> load_plugin(std::string_view name);

}  // namespace gradrail::transport
