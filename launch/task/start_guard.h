#pragma once

#include <string>

namespace gradrail::launch {

/// From its begin to the end of the start of a task. Libraries abort where the kernel refuses them memory or a
/// descriptor. gRPC 1.51 neither reports nor survives a thread that it cannot start: its calls wait for ever. Either
/// ends the task with kConfiguration and a text while this object exists. Later, a thread that gRPC cannot start may be
/// one of many, and the task goes on.
/// Threads  One object at a time, in any thread.
class StartGuard {
 public:
  /// `task` is the begin of the text: "ps/0".
  explicit StartGuard(const std::string& task);
  ~StartGuard() { end(); }
  StartGuard(const StartGuard&) = delete;
  StartGuard& operator=(const StartGuard&) = delete;

  /// The task has started.
  void end();
};

}  // namespace gradrail::launch
