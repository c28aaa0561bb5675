#include "bench/predict/goodput.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <queue>
#include <vector>

#include "base/random.h"
#include "ps/protocol/mode.h"

namespace gradrail::bench::predict {
namespace {

using Seconds = double;

constexpr Seconds kNever = std::numeric_limits<Seconds>::infinity();

Seconds mtbf_s(const Failures& failures) { return failures.mtbf_hours * 3600; }

uint32_t host_count(const Cluster& cluster, bool has_backup) {
  return cluster.worker_hosts() + (has_backup ? 2 : 1) * cluster.ps;
}

/// One run. Progress is measured in seconds of undisturbed steps.
class Run {
 public:
  Run(const Description& description, bool has_backup, Random& random)
      : cluster_(description.cluster),
        mode_(description.load.mode),
        failures_(description.failures),
        has_backup_(has_backup),
        random_(random),
        back_at_(host_count(cluster_, has_backup)),
        serving_(cluster_.ps),
        next_save_(failures_.save_secs) {
    for (uint32_t i = 0; i < serving_.size(); ++i) serving_[i] = first_ps() + i;
  }

  void run(Seconds end) {
    for (;;) {
      // Host by host the times between failures are exponential. A host that is down does not fail.
      const Seconds next =
          now_ - std::log1p(-random_.uniform()) * mtbf_s(failures_) / static_cast<double>(back_at_.size());
      advance(std::min(next, end));
      if (next >= end) return;
      const auto host = static_cast<uint32_t>(random_.below(back_at_.size()));
      if (back_at_[host] <= now_) fail(host);
    }
  }

  Seconds done = 0, lost = 0, stalled = 0, absent_s = 0;  // absent_s: of all workers together
  uint64_t failed = 0, returns = 0;

 private:
  uint32_t first_ps() const { return cluster_.worker_hosts(); }
  double pace() const {
    const double present = 1 - static_cast<double>(absent_) / cluster_.workers;
    return mode_.sums() && present > 0 ? 1 : present;
  }

  void advance(Seconds to) {
    while (now_ < to) {
      const Seconds back = absences_.empty() ? kNever : absences_.top().end;
      Seconds next = std::min(to, back);
      if (now_ < stalled_until_) {
        next = std::min(next, stalled_until_);
        stalled += next - now_;
      } else if (save_left_ > 0) {
        next = std::min(next, now_ + save_left_);
        save_left_ -= next - now_;
        // The difference of two moments may differ from the rest in its last bits.
        if (save_left_ < kRounding) finish_save(next);
      } else {
        next = std::min(next, std::max(now_, next_save_));
        done += (next - now_) * pace();
        if (next >= next_save_) begin_save(next);
      }
      absent_s += (next - now_) * absent_;
      now_ = next;
      if (now_ >= back) {
        absent_ -= absences_.top().workers;
        absences_.pop();
      }
    }
  }

  void begin_save(Seconds now) {
    save_left_ = failures_.save_cost_s;
    if (save_left_ < kRounding) finish_save(now);
  }

  void finish_save(Seconds now) {
    save_left_ = 0;
    saved_ = done;
    next_save_ = now + failures_.save_secs;
  }

  void stall_until(Seconds moment) { stalled_until_ = std::max(stalled_until_, moment); }

  void fail(uint32_t host) {
    ++failed;
    const Seconds noticed = now_ + failures_.detect_s;
    back_at_[host] = noticed + failures_.restart_s;
    if (host < cluster_.worker_hosts()) return lose_workers(host, noticed);
    if (!has_backup_) return return_to_checkpoint(back_at_[host]);
    const uint32_t pair = (host - first_ps()) % cluster_.ps;
    const uint32_t first = first_ps() + pair, other = host == first ? first + cluster_.ps : first;
    if (back_at_[other] > now_) return return_to_checkpoint(std::max(noticed, back_at_[other]));
    // The primary waits for the acknowledgments of its backup until it counts as lost.
    stall_until(noticed + (serving_[pair] == host ? failures_.takeover_s : 0));
    serving_[pair] = other;
  }

  void lose_workers(uint32_t host, Seconds noticed) {
    const uint32_t first = host * cluster_.workers_per_host;
    const uint32_t lost_workers = std::min(cluster_.workers_per_host, cluster_.workers - first);
    absences_.push({back_at_[host], lost_workers});
    absent_ += lost_workers;
    if (lost_workers > spare_workers()) stall_until(noticed);
  }

  /// Workers for which the others do not wait.
  uint32_t spare_workers() const {
    switch (mode_.kind) {
      case ModeKind::async:
        return cluster_.workers;
      case ModeKind::quorum:
        return cluster_.workers - mode_.bound;
      case ModeKind::sync:
      case ModeKind::ssp:
        return 0;
    }
    return 0;
  }

  void return_to_checkpoint(Seconds begin) {
    ++returns;
    lost += done - saved_;
    done = saved_;
    save_left_ = 0;
    stall_until(begin);
    next_save_ = stalled_until_ + failures_.save_secs;
  }

  static constexpr Seconds kRounding = 1e-9;
  struct Absence {
    Seconds end = 0;
    uint32_t workers = 0;
    bool operator>(const Absence& other) const { return end > other.end; }
  };

  const Cluster& cluster_;
  const Mode& mode_;
  const Failures& failures_;
  const bool has_backup_;
  Random& random_;
  std::vector<Seconds> back_at_;   ///< hosts of workers, ps, backups
  std::vector<uint32_t> serving_;  ///< per ps host and its backup
  std::priority_queue<Absence, std::vector<Absence>, std::greater<>> absences_;
  uint32_t absent_ = 0;  ///< workers
  Seconds now_ = 0, stalled_until_ = 0;
  Seconds saved_ = 0;  ///< progress in the newest checkpoint
  Seconds save_left_ = 0;
  Seconds next_save_;
};

}  // namespace

Goodput goodput_of(const Description& description, double step_s, bool has_backup) {
  const Failures& failures = description.failures;
  const Seconds end = failures.run_hours * 3600;
  Random random(kSeed, /*stream=*/2);
  Goodput goodput;
  std::vector<double> shares;
  for (uint32_t i = 0; i < failures.runs; ++i) {
    Run run(description, has_backup, random);
    run.run(end);
    shares.push_back(run.done / end);
    goodput.share += run.done / end;
    goodput.lost_steps += run.lost / step_s;
    goodput.failures += static_cast<double>(run.failed);
    goodput.returns += static_cast<double>(run.returns);
    goodput.stalled_s += run.stalled;
    goodput.absent += run.absent_s / end / description.cluster.workers;
  }
  for (double* mean :
       {&goodput.share, &goodput.lost_steps, &goodput.failures, &goodput.returns, &goodput.stalled_s, &goodput.absent})
    *mean /= failures.runs;
  std::sort(shares.begin(), shares.end());
  goodput.share_p5 = shares[shares.size() / 20];
  goodput.share_min = shares.front();
  goodput.steps_per_s = goodput.share / step_s;
  return goodput;
}

double best_save_s(const Description& description) {
  return std::sqrt(2 * description.failures.save_cost_s * mtbf_s(description.failures) / description.cluster.ps);
}

double goodput_events(const Description& description) {
  const Failures& failures = description.failures;
  return failures.runs * failures.run_hours * 3600 *
         (host_count(description.cluster, true) / mtbf_s(failures) + 1 / failures.save_secs);
}

}  // namespace gradrail::bench::predict
