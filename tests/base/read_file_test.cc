#include "base/read_file.h"

#include <sys/stat.h>
#include <unistd.h>

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

}  // namespace
}  // namespace gradrail
