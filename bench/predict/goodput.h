#pragma once

#include "bench/predict/description.h"

namespace gradrail::bench::predict {

/// Averages over the runs of the Monte Carlo simulation, except for the percentile and the minimum.
struct Goodput {
  double steps_per_s = 0;  ///< useful steps / wall time
  double share = 0;        ///< share of the steps of a run without failures and saves
  double share_p5 = 0;     ///< 5th percentile of the runs. A few runs with large losses can lower the mean below it
  double share_min = 0;    ///< share of the worst run
  double lost_steps = 0;   ///< steps of a run that are done again after a return to a checkpoint
  double failures = 0;     ///< failures of hosts in a run
  double returns = 0;      ///< returns to a checkpoint in a run
  double stalled_s = 0;    ///< time of a run in which no worker makes a step
  double absent = 0;       ///< share of the gradients that lost workers do not send
};

/// Runs in which hosts fail at random. A step takes `step_s` between failures.
/// Rules   docs/fault-tolerance.md. A lost worker: the others wait until it counts as lost, unless the mode does not
///         wait for it. In async and ssp the missing gradients are missing steps. A lost
///         ps: its backup takes over, else all wait for its restart and return to the newest checkpoint.
/// Units   failures and hosts as in `description`; seconds.
/// Source  J. W. Young, CACM 17 (1974); J. T. Daly, FGCS 22 (2006): closed forms for the case without a backup.
Goodput goodput_of(const Description& description, double step_s, bool has_backup);

/// The time between two saves with the best goodput without a backup, to first order. 0: any save costs nothing.
double best_save_s(const Description& description);

/// Work of the simulation, as a number of failures and saves.
double goodput_events(const Description& description);

}  // namespace gradrail::bench::predict
