#pragma once

#include <sys/types.h>
#include <termios.h>

#include "absl/status/status.h"

namespace gradrail::launch {

/// The terminal on stdin, if it controls this process. One program may have it: its process group is then the
/// foreground group, which receives the keys Ctrl-C and Ctrl-Z. Without such a terminal all functions do nothing.
/// Threads  One owner.
class Terminal {
 public:
  /// From now on this process and its later children write to the terminal also in the background.
  /// Errors  FAILED_PRECONDITION: this process is in the background, so that it cannot give the terminal away.
  absl::Status open();

  /// To the group of a task, if this process has the terminal: its shell may have put it into the background.
  void give(pid_t group);
  /// From that group. Also restores the modes, which a killed program may have changed.
  void take_back();
  bool is_ours() const;

 private:
  bool is_open_ = false;
  pid_t given_to_ = 0;
  termios modes_ = {};
};

}  // namespace gradrail::launch
