#pragma once

#include <string>

#include "gradrail/cluster.h"

namespace gradrail::worker {

/// Cuts every data connection of this process over one transport: the sockets that are neither listeners nor gRPC's.
size_t cut_data_connections(const std::string& transport, const ClusterSpec& cluster);

/// Cuts until at least one connection was hit. A descriptor's number may belong to another file when other threads open
/// and close files. Therefore the thread that owns the client cuts.
void cut_one(const std::string& transport, const ClusterSpec& cluster);

}  // namespace gradrail::worker
