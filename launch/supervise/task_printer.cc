#include "launch/supervise/task_printer.h"

#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_replace.h"
#include "base/log.h"
#include "fmt/format.h"

namespace gradrail::launch {

TaskPrinter::TaskPrinter() {
  struct stat output = {}, errors = {};
  one_place_ = fstat(STDOUT_FILENO, &output) == 0 && fstat(STDERR_FILENO, &errors) == 0 &&
               output.st_dev == errors.st_dev && output.st_ino == errors.st_ino;
  places_[0].is_terminal = isatty(STDOUT_FILENO) != 0;
  places_[1].is_terminal = isatty(STDERR_FILENO) != 0;
}

void TaskPrinter::print(std::FILE* out, const std::string& task, std::string_view part, bool ends_line) {
  Place& place = places_[out == stderr && !one_place_ ? 1 : 0];
  const std::string prefix = fmt::format("[{}] ", task);
  std::string text;
  if (place.out != out || place.task != task) {
    end_line(place);
    text = prefix;
  }
  if (place.is_terminal) {
    text += absl::StrReplaceAll(absl::string_view(part.data(), part.size()), {{"\r", "\r" + prefix}});
  } else {
    text += part;
  }
  if (ends_line) text += '\n';
  place.out = ends_line ? nullptr : out;
  place.task = task;
  print_text(out, "{}", text);
  std::fflush(out);
}

void TaskPrinter::end_line(Place& place) {
  if (place.out == nullptr) return;
  print_text(place.out, "\n");
  std::fflush(place.out);
  place.out = nullptr;
}

void TaskPrinter::end_lines() {
  for (Place& place : places_) end_line(place);
}

}  // namespace gradrail::launch
