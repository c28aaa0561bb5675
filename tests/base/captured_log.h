#pragma once

#include <string>

#include "base/log.h"
#include "base/mutex.h"

namespace gradrail {

/// Receives the log of this process instead of stderr, as long as it lives.
class CapturedLog {
 public:
  explicit CapturedLog(LogLevel least = LogLevel::debug) {
    send_log_to(
        [this](int /*level*/, const std::string& text) {
          const MutexLock lock(mutex_);
          text_ += text + "\n";
        },
        static_cast<int>(least));
  }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;
  ~CapturedLog() { send_log_to(nullptr, 0); }

  /// The records so far, one line each.
  std::string text() const {
    const MutexLock lock(mutex_);
    return text_;
  }

 private:
  mutable Mutex mutex_;
  std::string text_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradrail
