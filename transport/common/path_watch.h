#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "gradrail/clock.h"

namespace gradrail::transport::common {

/// Decides from finished transfers whether the device's path to a peer is lost. A device may repeat its transfers
/// without end and report nothing. A path is lost if both are true:
///   - The device finishes no transfer for `limit`, plus the time of the posted bytes at 4 MB/s.
///   - During this time the peer answers kAnswers probes on the side channel, 1 s apart. A peer that is only slow does
///     not answer, and the side channel itself detects a peer that has ended.
/// It has no clock and no socket.
/// Threads  Owner thread of the connection.
class PathWatch {
 public:
  enum class Verdict : uint8_t {
    fine,   ///< nothing to do
    probe,  ///< send next_probe() to the peer, then call probed()
    lost,
  };
  static constexpr uint32_t kAnswers = 3;

  explicit PathWatch(Duration limit) : limit_(limit) {}

  /// `waits`: whether the device has a transfer. `finished`: the number of transfers that it has finished.
  /// `posted_bytes`: the bytes of the others; called after a long silence only.
  Verdict check(TimePoint now, bool waits, uint64_t finished, absl::FunctionRef<uint64_t()> posted_bytes);
  uint32_t next_probe() const { return probe_ + 1; }
  /// The probe was sent. Without this call, the next check() returns `probe` again.
  void probed(TimePoint now);
  /// The peer has answered the probe of this number. Only the answer to the open probe counts.
  void answered(uint32_t number);

  /// The time since the last finished transfer.
  Duration silence(TimePoint now) const { return now - silent_since_; }

 private:
  const Duration limit_;
  uint64_t finished_before_ = 0;  ///< value at the last check()
  TimePoint silent_since_{};
  TimePoint probed_at_{};
  uint32_t probe_ = 0;  ///< number of the last probe
  bool awaits_answer_ = false;
  uint32_t answers_ = 0;  ///< answers in this silence
};

}  // namespace gradrail::transport::common
