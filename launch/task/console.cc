#include "launch/task/console.h"

#include <cstdio>

#include "base/exit_codes.h"
#include "base/log.h"
#include "base/status.h"

namespace gradrail::launch {

void print_line(const std::string& line) {
  print_text("{}\n", line);
  std::fflush(stdout);
}

void print_comment(const std::string& line) { print_line("# " + line); }

int report(const absl::Status& status, const std::string& task) {
  if (status.ok()) return kGood;
  print_text(stderr, "gradrail: {}{}{}\n", task, task.empty() ? "" : ": ", message_of(status));
  return exit_code(status);
}

}  // namespace gradrail::launch
