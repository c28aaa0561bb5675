#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/exit_codes.h"
#include "base/resource_limits.h"
#include "gradrail/clock.h"

namespace gradrail::launch {

/// Receives a line, or a part of it, without the end of line. `ends_line`: the line ends behind this part.
using PrintPart = std::function<void(std::string_view part, bool ends_line)>;

/// One output of a task: a pipe that the supervisor reads line by line, so that lines of several tasks do not mix. The
/// bytes are not changed.
class OutputStream {
 public:
  enum class Parts {
    kLines,   ///< a line is printed when it ends
    kPrompt,  ///< a line without an end is printed after 100 ms: the prompt or the progress bar of a program
  };

  OutputStream() = default;
  OutputStream(int fd, Parts parts) : fd_(fd), parts_(parts) {}

  /// -1 after the end of file: the task and all its children have closed the pipe.
  int fd() const { return fd_; }
  /// Reads what is there, and prints each whole line. A long line is printed in parts, so that memory is bounded.
  void take(const PrintPart& print);
  /// The moment of the next print_due().
  TimePoint due() const { return due_; }
  /// Prints the part of a line that has waited for its end.
  void print_due(const PrintPart& print);
  /// Reads what is there, and closes the pipe. Returns whether a writer still has it open.
  bool end(const PrintPart& print);
  /// In a child of the supervisor: the stream of a sibling.
  void close_copy() const;

 private:
  void print_part(const PrintPart& print);
  void close_at_end(const PrintPart& print);

  int fd_ = -1;
  Parts parts_ = Parts::kLines;
  std::string partial_line_;  ///< what is not printed yet
  bool is_begun_ = false;     ///< a part of the line is printed
  TimePoint due_ = TimePoint::max();
};

/// A child process of the supervisor.
struct TaskProcess {
  std::string name;
  bool is_chief = false;
  bool is_worker = false;
  bool is_group = false;        ///< it leads its own process group, which gets its signals
  bool is_interactive = false;  ///< it reads the stdin of the supervisor
  uint32_t index = 0;
  pid_t pid = -1;
  OutputStream output;
  OutputStream errors;  ///< of a program; other tasks write to the stderr of the supervisor
  bool running = true;
  bool is_again = false;      ///< it replaces a lost one
  int former_code = kGood;    ///< the exit code of the lost one
  bool is_due_again = false;  ///< ended, and is started again after its last output
  bool is_late = false;       ///< it is stopped, because it cannot join any more
  bool is_suspended = false;  ///< by a signal
  int exit_code = kGood;
  TimePoint output_until = TimePoint::max();  ///< from its end on: its own children may keep a pipe open

  bool has_output() const { return output.fd() >= 0 || errors.fd() >= 0; }
  void signal(int number) const;
  /// Prints what is there, and closes both pipes. Returns whether a writer still has one of them open.
  bool end_output(const PrintPart& print_output, const PrintPart& print_error);
};

struct ForkedTask {
  std::string name;
  std::function<int()> body;    ///< returns the exit code of the child
  bool is_program = false;      ///< its stderr has a pipe, and it leads its own process group
  bool is_interactive = false;  ///< a program with the stdin of the supervisor; that of all others is /dev/null
  int signals = -1;             ///< the signalfd of the supervisor
};

/// Forks a task with its stdout in a pipe. A program without a terminal cannot be stopped by its use of one: reads
/// fail, writes succeed. The child ends with the result of the body, and when the supervisor ends.
/// `siblings` are all former tasks. After an error, which is printed, the result does not run and has an exit code.
TaskProcess fork_task(const ForkedTask& task, const std::vector<TaskProcess>& siblings);

/// The processes of this host and its containers that the kernel has killed for lack of memory. nullopt: not known.
std::optional<uint64_t> out_of_memory_kills(const SystemFiles& files = read_system_file);

/// "was killed by signal 11 (Segmentation fault)", and for a SIGKILL its cause by two of these numbers.
std::string describe_kill(int wait_status, std::optional<uint64_t> kills_before, std::optional<uint64_t> kills_now);

/// A worker runs, or is started again.
bool workers_run(const std::vector<TaskProcess>& processes);

/// All workers have left, and no worker can join any more. False if the servers were lost.
bool servers_have_ended(const std::vector<TaskProcess>& processes);

/// The exit code of a lost ps that has no backup, or that was lost with it. kGood: there is none. `primaries`: their
/// number; task i + primaries is the backup of task i.
int lost_ps_code(const std::vector<TaskProcess>& processes, uint32_t primaries);

/// The exit code that says most: the cause of a failed run outranks its consequences, configuration before retry. With
/// `backups_served`, a lost ps is no failure.
int worst_code(const std::vector<TaskProcess>& processes, bool backups_served);

}  // namespace gradrail::launch
