#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ps/protocol/mode.h"

namespace gradrail::ps::prove {

/// How often each fault may happen on one path of the search. The search combines them in every order.
struct Faults {
  uint8_t disconnects = 0;     ///< of a worker's data connection, detected by either end first
  uint8_t copies = 0;          ///< of pushes; a copy may arrive at any later time
  uint8_t forgeries = 0;       ///< pushes that skip a step
  uint8_t restarts = 0;        ///< a worker is killed and starts again as a new incarnation
  uint8_t kills = 0;           ///< a worker is killed and does not return
  uint8_t removals = 0;        ///< a running worker is declared lost; it returns as the same incarnation
  uint8_t primary_losses = 0;  ///< a primary is killed
  uint8_t backup_losses = 0;   ///< a backup is killed
  uint8_t link_losses = 0;     ///< of the connection between a primary and its backup
  uint8_t full_queues = 0;     ///< the transport has no room for a filled slot of the backup
  uint8_t old_windows = 0;     ///< the timer of a grace window runs out after its step

  bool any() const {
    return disconnects + copies + forgeries + restarts + kills + removals + primary_losses + backup_losses +
               link_losses + full_queues + old_windows >
           0;
  }
};

/// One cluster for a search.
struct Config {
  std::string name;
  Mode mode;  ///< worker_count: all of them join before the search begins
  uint32_t servers = 1;
  uint32_t buckets = 1;  ///< per server
  uint64_t steps = 2;    ///< of each incarnation (async, ssp), of the run (sync, backup)
  bool has_backup = false;
  bool is_initialised = true;     ///< false: worker 0 sends initial values, the others pull
  bool counts_staleness = false;  ///< pushes name the version that they are based on
  bool marks_finished = false;    ///< a worker reports the end of its steps before it leaves
  bool shares_place = false;      ///< the buckets of a worker leave one after the other (SlotPlaces)
  Faults faults;
};

/// A run of less than a minute, for `make test`.
std::vector<Config> quick_configs();
/// These and larger ones, for `make prove`.
std::vector<Config> full_configs();
std::string describe(const Config& config);

}  // namespace gradrail::ps::prove
