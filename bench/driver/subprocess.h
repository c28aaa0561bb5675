#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/file_descriptor.h"
#include "nlohmann/json.hpp"

namespace gradrail::bench {

/// Something that runs in a process of its own, so that threads, memory and failures of one do not touch the next.
/// Destruction ends it with all that it has started (children.h).
/// Threads  Nothing but the caller's may run when it starts: it is forked.
class Subprocess {
 public:
  explicit Subprocess(const std::function<nlohmann::json()>& body);
  Subprocess(Subprocess&& other) noexcept;
  Subprocess& operator=(Subprocess&&) = delete;
  ~Subprocess();

  /// Whether result() would return at once: it has ended, or is about to. Looks no longer than this.
  bool is_done(Duration timeout) const;
  /// Returns the body's result. Errors  INTERNAL: it ended without. DEADLINE_EXCEEDED.
  absl::StatusOr<nlohmann::json> result(TimePoint deadline);

 private:
  int process_ = -1;
  FileDescriptor output_;
};

}  // namespace gradrail::bench
