#pragma once

#include <string>

#include "tools/doctor/system.h"

namespace gradrail::tools::doctor {

struct LibraryAnswer {
  std::string path;           ///< the file that the dynamic linker took
  std::string version;        ///< as the library says
  bool cuda = false;          ///< it calls CUDA's functions (libfabric); UCX has a module for that
  bool lacks_cudart = false;  ///< it does so through libcudart.so, which this host does not have under this name
};

/// As a run would find them, LD_LIBRARY_PATH and all.
/// Each library is loaded in a process of its own.
/// Errors  as System::observe; NOT_FOUND: no such library.
absl::StatusOr<LibraryAnswer> probe_ucx(System& system);
absl::StatusOr<LibraryAnswer> probe_libfabric(System& system);

}  // namespace gradrail::tools::doctor
