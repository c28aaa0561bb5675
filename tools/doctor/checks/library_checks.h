#pragma once

#include <vector>

#include "tools/doctor/check.h"
#include "tools/doctor/facts/gpu_facts.h"
#include "tools/doctor/facts/rdma_facts.h"

namespace gradrail::tools::doctor {

/// UCX and libfabric: which, and whether they were built for verbs and for CUDA.
/// Neither has a query for it: UCX shows it by its module files, libfabric by the names of CUDA functions.
std::vector<Check> check_libraries(System& system, const GpuHost& host, const std::vector<RdmaDevice>& devices);

}  // namespace gradrail::tools::doctor
