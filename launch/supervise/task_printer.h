#pragma once

#include <cstdio>
#include <string>
#include <string_view>

namespace gradrail::launch {

/// Prints lines of several programs to stdout and stderr, each with the task's name in front. A line may come in parts:
/// it stays open, and ends early if another one begins before its end. On a terminal the name is repeated behind each
/// carriage return, because the program overwrites the line.
/// Threads  One owner.
class TaskPrinter {
 public:
  TaskPrinter();

  /// `out`: stdout or stderr.
  void print(std::FILE* out, const std::string& task, std::string_view part, bool ends_line);
  /// Before a line that another object prints.
  void end_lines();

 private:
  /// A file on which at most one line is open.
  struct Place {
    std::FILE* out = nullptr;  ///< of the open line; null: none is open
    std::string task;          ///< of the open line
    bool is_terminal = false;
  };
  static void end_line(Place& place);

  bool one_place_ = false;  ///< stdout and stderr are one file: they share the first place
  Place places_[2];
};

}  // namespace gradrail::launch
