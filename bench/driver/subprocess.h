#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "base/file_descriptor.h"
#include "gradrail/clock.h"
#include "nlohmann/json_fwd.hpp"

namespace gradrail::bench {

/// A job in a separate process, so that its threads, memory and failures do not affect the next one. Destruction ends
/// the process with all that it has started (children.h).
/// run_in_subprocess() of base/subprocess.h waits for its one child. A benchmark runs several children at a time and
/// polls them with is_done(). It also ends their children, and starts them by exec() when other threads run.
/// Threads  Only the caller's thread may run when a body starts: it is forked.
class Subprocess {
 public:
  explicit Subprocess(const std::function<nlohmann::json()>& body);
  /// Starts this program again for a job of jobs.h. Any thread may run, unlike above.
  static Subprocess start(const nlohmann::json& job);
  Subprocess(Subprocess&& other) noexcept;
  Subprocess& operator=(Subprocess&&) = delete;
  ~Subprocess();

  /// Whether result() would return immediately: the process has ended, or is about to. Waits no longer than this.
  bool is_done(Duration timeout) const;
  /// Returns the body's result. Errors  INTERNAL: it ended without. DEADLINE_EXCEEDED.
  absl::StatusOr<nlohmann::json> result(TimePoint deadline);

 private:
  Subprocess() = default;
  int process_ = -1;
  absl::Status why_none_;  ///< error of a process that could not be started
  TimePoint start_ = Clock::now();
  FileDescriptor output_;
};

/// A JSON text in one line. Messages of foreign libraries may have invalid UTF-8: it is replaced, since an exception
/// would lose the result.
std::string text_of(const nlohmann::json& json);

/// Writes the result of the body to the parent, and ends this process.
[[noreturn]] void run_child(int output, const std::function<nlohmann::json()>& body);

}  // namespace gradrail::bench
