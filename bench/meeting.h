#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/member.h"
#include "bench/ranks.h"

namespace gradrail::bench {

/// Rank 0's view of a run over several processes: it is the first server, asks the others to do theirs and prints.
/// Threads  One.
class Meeting {
 public:
  /// Waits for all others. Errors  DEADLINE_EXCEEDED: names those that did not come. FAILED_PRECONDITION: one of
  /// another version; the address cannot be listened at.
  static absl::StatusOr<std::unique_ptr<Meeting>> open(const Place& place, const std::string& bind_host);
  ~Meeting();

  std::vector<Member*> servers() const;
  std::vector<Member*> workers() const;
  /// Where this process' server listens.
  const std::string& bind_host() const { return bind_host_; }
  /// Whether all have one clock.
  bool on_one_host() const { return hosts_.size() == 1; }
  /// Whether on some host more tasks would spin than it has cores.
  bool crowded(uint32_t shards) const;

 private:
  Meeting() = default;
  Place place_;
  std::string bind_host_;
  SharedPage page_;
  struct Host {
    uint32_t cpus = 0;
    uint32_t servers = 0;
    uint32_t workers = 0;
  };
  std::vector<std::pair<std::string, Host>> hosts_;
  std::vector<std::unique_ptr<Member>> members_;  ///< by rank
  void count(const std::string& host, uint32_t cpus, uint32_t rank);
};

/// Any other rank: does what rank 0 asks for until that ends. Returns the exit code.
absl::StatusOr<int> attend(const Place& place, const std::string& bind_host);

}  // namespace gradrail::bench
