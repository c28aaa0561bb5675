#include "launch/supervise/task_printer.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace gradrail::launch {
namespace {

/// A file in memory, in the place of stdout.
class Output {
 public:
  Output() : file_(open_memstream(&text_, &bytes_)) {}
  ~Output() {
    std::fclose(file_);
    std::free(text_);
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  std::FILE* file() const { return file_; }
  std::string text() const {
    std::fflush(file_);
    return {text_, bytes_};
  }

 private:
  char* text_ = nullptr;
  size_t bytes_ = 0;
  std::FILE* file_;
};

TEST(TaskPrinter, EachLineBeginsWithItsTask) {
  const Output output;
  TaskPrinter printer;
  printer.print(output.file(), "worker/0", "one", true);
  printer.print(output.file(), "worker/1", "", true);
  printer.print(output.file(), "worker/0", std::string_view("\xff\0\r", 3), true);
  EXPECT_EQ(output.text(), std::string("[worker/0] one\n[worker/1] \n[worker/0] \xff\0\r\n", 42));
}

TEST(TaskPrinter, PartsOfALineStayTogether) {
  const Output output;
  TaskPrinter printer;
  printer.print(output.file(), "worker/0", "\r10%", false);
  printer.print(output.file(), "worker/0", "\r20%", false);
  printer.print(output.file(), "worker/0", "", true);
  printer.print(output.file(), "worker/0", "done", true);
  EXPECT_EQ(output.text(), "[worker/0] \r10%\r20%\n[worker/0] done\n");
}

TEST(TaskPrinter, AnotherTaskBeginsALine) {
  const Output output;
  TaskPrinter printer;
  printer.print(output.file(), "worker/0", "10%", false);
  printer.print(output.file(), "worker/1", "11%", false);
  printer.print(output.file(), "worker/0", "20%", true);
  printer.print(output.file(), "worker/1", "12%", false);
  printer.end_lines();
  printer.end_lines();
  printer.print(output.file(), "worker/1", "13%", true);
  EXPECT_EQ(output.text(), "[worker/0] 10%\n[worker/1] 11%\n[worker/0] 20%\n[worker/1] 12%\n[worker/1] 13%\n");
}

}  // namespace
}  // namespace gradrail::launch
