#pragma once

#include <string>
#include <vector>

#include "tools/doctor/tree.h"

namespace gradrail::tools::doctor {

/// The default folders of the dynamic linker and of a CUDA installation.
std::vector<std::string> library_folders(Tree& tree);

/// The path of a library of exactly this name, "libcuda.so.1", "ucx/libuct_cuda.so.0"; "" when it is in none of them.
std::string find_library(Tree& tree, const std::string& name);

/// The same, of a name that begins like this in a folder inside them: libibverbs/libmlx5-rdmav34.so. Folders of
/// libraries themselves are too long to be looked through.
std::string find_plugin(Tree& tree, const std::string& folder, const std::string& prefix);

/// The longest version among a library's name and what it is a link to: "580.65.06" for libcuda.so.1 ->
/// libcuda.so.580.65.06; "" when there is none.
std::string library_version(Tree& tree, const std::string& path);

}  // namespace gradrail::tools::doctor
