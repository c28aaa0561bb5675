#pragma once

#include <string>

#include "ps/cluster_spec.h"

namespace gradrail::worker {

/// Cuts every data connection of this process over one transport: the sockets that are neither listeners nor gRPC's.
size_t cut_data_connections(const std::string& transport, const ps::ClusterSpec& cluster);

/// Whoever reads a descriptor's number while others open and close may hit another's: cuts are made by the thread that
/// owns the client, and again when they hit nothing.
void cut_one(const std::string& transport, const ps::ClusterSpec& cluster);

}  // namespace gradrail::worker
