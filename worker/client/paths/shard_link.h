#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gradrail/clock.h"
#include "ps/protocol/shard_map.h"
#include "transport/negotiate.h"
#include "worker/client/paths/shard_path.h"

namespace gradrail::ps::proto {
class JoinReply_Shard;
}  // namespace gradrail::ps::proto

namespace gradrail::worker {

/// A worker's end of one shard: the shard's place in the cluster, the possible paths to it, and the one in use.
/// Threads  Owner thread of the client.
struct ShardLink {
  // The shard, set when joining and when another server takes over.
  uint32_t ps_index = 0;
  uint32_t shard_index = 0;  ///< counted over all ps tasks
  uint32_t bucket_count = 0;
  ps::ElementRange range;                   ///< range in the whole model
  std::shared_ptr<const ps::ShardMap> map;  ///< all links share it
  ReturnFormat returns = ReturnFormat::fp32;
  std::string server;   ///< name for people: "parameter server 0 (10.0.0.1:2222)"
  std::string address;  ///< address of its control plane, "10.0.0.1:2222"
  std::string token;    ///< token from the ps: the key of a data connection derives from it
  struct Endpoint {
    std::string transport;
    std::string address;
    std::string rails;  ///< the addresses for a connection of several lanes; "": none
  };
  std::vector<Endpoint> endpoints;  ///< addresses on which the shard listens for data connections

  // The choice of a path.
  std::vector<transport::Candidate> candidates;          ///< sorted by preference
  std::map<GpuTransfer, std::string> transfers_refused;  ///< reasons why the path in use does not take them
  bool host_slots = false;                               ///< the check of a path into the shard's GPU memory has failed
  std::string ipc_refused;                               ///< reasons that no choice of path changes
  /// Obstacle of the last attempt over a network.
  enum class Obstacle : uint8_t {
    other,
    port,  ///< no connection: its port does not answer, or refuses
    size,  ///< small messages have crossed the connection, and the pattern has not
  };
  Obstacle obstacle = Obstacle::other;

  // The path in use.
  std::unique_ptr<ShardPath> path;  ///< active, or just lost; null while none is open
  size_t candidate = 0;             ///< index of its candidate
  struct Bytes {
    uint64_t pushed = 0;
    uint64_t returned = 0;
    uint64_t pushed_fp32 = 0;  ///< ClientStats::bytes_pushed_fp32
    uint64_t returned_fp32 = 0;
  };
  Bytes* bytes = nullptr;  ///< bytes of all paths with the name of the path in use; PathManager owns them

  /// A better path that is tested beside the one in use.
  struct Probe {
    std::unique_ptr<ShardPath> path;  ///< null: none is being tested
    size_t candidate = SIZE_MAX;      ///< the one that is tested, or was tested last
    GpuTransfer way = GpuTransfer::staged;
    std::map<GpuTransfer, std::string> refused;         ///< becomes transfers_refused when the path is taken
    std::set<std::pair<size_t, GpuTransfer>> rejected;  ///< candidates, with the ways over them that failed their check
    TimePoint deadline;
  };
  Probe probe;
  TimePoint next_probe = TimePoint::max();  ///< max: `path` is the best there is

  /// Closes the path and the tested one. The next probe begins with the best candidate.
  void close() {
    path.reset();
    probe.path.reset();
    probe.candidate = SIZE_MAX;
  }
  bool is_up() const { return path != nullptr && path->phase() == ShardPath::Phase::active; }
};

/// The addresses at which the shard listens, from the reply of the ps at link.address.
void set_endpoints(ShardLink& link, const ps::proto::JoinReply_Shard& shard);

/// The path in use, with the reasons against those that would have been preferred. For people.
std::string explain_path(const ShardLink& link);

}  // namespace gradrail::worker
