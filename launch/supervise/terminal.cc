#include "launch/supervise/terminal.h"

#include <unistd.h>

#include <csignal>

namespace gradrail::launch {

absl::Status Terminal::open() {
  // A terminal that does not control this process has no foreground group: any process can read it.
  const pid_t foreground = tcgetpgrp(STDIN_FILENO);
  if (foreground < 0 || tcgetattr(STDIN_FILENO, &modes_) != 0) return absl::OkStatus();
  if (foreground != getpgrp())
    return absl::FailedPreconditionError(
        "--interactive: this run is in the background, and has no terminal; start it in the foreground");
  // Else tcsetpgrp() would stop this process, and with `stty tostop` each line.
  std::signal(SIGTTOU, SIG_IGN);
  is_open_ = true;
  return absl::OkStatus();
}

bool Terminal::is_ours() const { return is_open_ && tcgetpgrp(STDIN_FILENO) == getpgrp(); }

void Terminal::give(pid_t group) {
  if (is_ours()) tcsetpgrp(STDIN_FILENO, group);
  given_to_ = group;
}

void Terminal::take_back() {
  if (!is_open_ || given_to_ == 0 || tcgetpgrp(STDIN_FILENO) != given_to_) return;
  tcsetpgrp(STDIN_FILENO, getpgrp());
  tcsetattr(STDIN_FILENO, TCSADRAIN, &modes_);
}

}  // namespace gradrail::launch
