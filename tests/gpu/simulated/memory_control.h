#pragma once

#include <sys/types.h>

#include "tests/gpu/simulated/control.h"

// For what stands between a network library and the simulated GPU.

/// The device of this address range, for allocated or freed memory; -1: memory of the host.
GRADRAIL_SIMULATED_CONTROL int gradrail_simulated_device_of(const void* data);
/// The file behind an address of a device; 0 for any other.
GRADRAIL_SIMULATED_CONTROL ino_t gradrail_simulated_file_of(const void* data);
