#include "base/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/status.h"
#include "gmock/gmock.h"

namespace gradrail {
namespace {

using testing::StartsWith;

class ReadFile : public testing::Test {
 protected:
  ReadFile() { std::filesystem::create_directories(folder_); }
  ~ReadFile() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  void write(const std::string& name, const std::string& text) const { std::ofstream(path(name)) << text; }
  void expect_refused(const std::string& name, size_t max_bytes, absl::StatusCode code) const {
    const absl::Status status = read_file(path(name), max_bytes).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(message_of(status)), StartsWith(path(name) + ": "));
  }

 private:
  const std::string folder_ = testing::TempDir() + "gradrail_read_file_" + std::to_string(getpid());
};

TEST_F(ReadFile, ReturnsTheFirstLineAndNothingOfAMissingFile) {
  write("lines", "first\nsecond\n");
  write("unfinished", "first");
  EXPECT_EQ(first_line(path("lines")), "first");
  EXPECT_EQ(first_line(path("unfinished")), "first");
  EXPECT_EQ(first_line(path("missing")), "");
}

TEST_F(ReadFile, ReturnsTheNamesOfAFolderInOrder) {
  for (const char* const name : {"b", "c", "a"}) write(name, "");
  EXPECT_THAT(names_in(path("")), testing::ElementsAre("a", "b", "c"));
  EXPECT_THAT(names_in(path("missing")), testing::IsEmpty());
}

TEST_F(ReadFile, ReturnsTheContent) {
  const std::string text(70'000, 'x');
  write("long", text);
  EXPECT_EQ(read_file(path("long"), text.size()).value_or(""), text);
  write("empty", "");
  EXPECT_EQ(read_file(path("empty"), 0).value_or("none"), "");
  EXPECT_TRUE(read_file("/proc/self/status", 100'000).value_or("").starts_with("Name:"));  // has no size in stat()
}

TEST_F(ReadFile, ErrorsNameThePath) {
  write("long", "12345");
  expect_refused("long", 4, absl::StatusCode::kInvalidArgument);
  expect_refused("missing", 4, absl::StatusCode::kNotFound);
  expect_refused("", 4, absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  expect_refused("pipe", 4, absl::StatusCode::kInvalidArgument);
}

TEST_F(ReadFile, ReadsAPipeOnRequest) {
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  std::thread writer([&] { write("pipe", "text"); });
  EXPECT_EQ(read_file(path("pipe"), 10, FileKind::any).value_or(""), "text");
  writer.join();
}

TEST_F(ReadFile, APipeWithoutAWriterIsNotAwaitedForEver) {
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  const absl::StatusOr<FileDescriptor> file = open_input(path("pipe"), FileKind::any);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(read_input(*file, path("pipe"), 10, std::chrono::milliseconds(20)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(ReadFile, ARequestToEndEndsTheWaitForAPipe) {
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  // In a process of its own, which no other test shares.
  EXPECT_EXIT(
      {
        std::thread request([] {
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          end_pipe_waits();
        });
        const absl::Status read = read_file(path("pipe"), 10, FileKind::any).status();
        request.join();
        std::_Exit(absl::IsCancelled(read) ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(ReadFile, AWriterThatStaysIsNotAwaitedForEver) {
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  const absl::StatusOr<FileDescriptor> file = open_input(path("pipe"), FileKind::any);
  ASSERT_TRUE(file.ok()) << file.status();
  const FileDescriptor writer(open(path("pipe").c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(write_all(writer.get(), "text"));
  EXPECT_EQ(read_input(*file, path("pipe"), 10, std::chrono::milliseconds(20)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(ReadFile, ADeviceWithoutAnEndIsReadUpToTheLimit) {
  EXPECT_EQ(read_file("/dev/zero", 10, FileKind::any).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(message_of(read_file("/dev/zero", 10).status())),
              testing::HasSubstr("/dev/zero: is a device, not a regular file"));
}

TEST_F(ReadFile, ALinkToNothingNamesItsTarget) {
  std::filesystem::create_symlink("/not/mounted/file", path("link"));
  for (const absl::Status& status :
       {check_regular_file(path("link")), read_file(path("link"), 10).status(),
        read_file(path("link"), 10, FileKind::any).status(), open_regular_file(path("link"), O_RDONLY).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(message_of(status)),
                testing::HasSubstr(
                    path("link") +
                    ": cannot be read: is a symbolic link to /not/mounted/file, which is not there (is its storage"));
  }
}

TEST_F(ReadFile, OnlyARegularFileIsOpened) {
  write("file", "text");
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  std::filesystem::create_directory(path("folder"));
  std::filesystem::create_symlink("file", path("link"));
  std::filesystem::create_symlink("/dev/zero", path("device"));
  for (const int flags : {O_RDONLY, O_RDWR | O_CREAT, O_WRONLY | O_CREAT | O_APPEND}) {
    EXPECT_TRUE(open_regular_file(path("file"), flags, 0600).ok());
    EXPECT_TRUE(open_regular_file(path("link"), flags, 0600).ok());
    for (const char* const name : {"pipe", "folder", "device"}) {
      EXPECT_EQ(open_regular_file(path(name), flags, 0600).status().code(), absl::StatusCode::kInvalidArgument) << name;
    }
  }
  EXPECT_EQ(open_regular_file(path("none"), O_RDONLY).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(open_regular_file(path("new"), O_RDWR | O_CREAT, 0600).ok());
}

TEST_F(ReadFile, WritesResults) {
  EXPECT_TRUE(write_file(path("file"), "first\n", WriteMode::append).ok());
  EXPECT_TRUE(write_file(path("file"), "second\n", WriteMode::append).ok());
  EXPECT_EQ(read_file(path("file"), 100).value_or(""), "first\nsecond\n");
  EXPECT_TRUE(write_file(path("file"), "third\n", WriteMode::replace).ok());
  EXPECT_EQ(read_file(path("file"), 100).value_or(""), "third\n");
  EXPECT_TRUE(write_file("/dev/null", "text", WriteMode::replace).ok());
  EXPECT_THAT(std::string(message_of(write_file(path(""), "text", WriteMode::replace))), StartsWith(path("") + ": "));
}

TEST_F(ReadFile, WritesIntoAPipeThatIsRead) {
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  const std::string text(200'000, 'x');  // more than a pipe holds
  const absl::StatusOr<FileDescriptor> reader = open_input(path("pipe"), FileKind::any);
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::thread writer([&] { EXPECT_TRUE(write_file(path("pipe"), text, WriteMode::replace).ok()); });
  EXPECT_EQ(read_input(*reader, path("pipe"), 1'000'000).value_or(""), text);
  writer.join();
}

TEST_F(ReadFile, AReaderThatTakesNothingIsNotAwaitedForEver) {
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  const std::string text(200'000, 'x');
  EXPECT_THAT(std::string(message_of(write_file(path("pipe"), text, WriteMode::replace))),
              testing::HasSubstr(path("pipe") + ": is a pipe that no process reads"));
  const absl::StatusOr<FileDescriptor> reader = open_input(path("pipe"), FileKind::any);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(write_file(path("pipe"), text, WriteMode::replace, std::chrono::milliseconds(20)).code(),
            absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace gradrail
