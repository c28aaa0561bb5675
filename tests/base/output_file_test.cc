#include "base/output_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/read_file.h"
#include "base/status.h"

namespace gradrail {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class OutputFile : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(folder_.data()), nullptr); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string file(const std::string& name) const { return folder_ + "/" + name; }
  std::string refusal(const std::string& path, OutputKind kind) const {
    const absl::Status refused = check_output_file(path, kind);
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << path << ": " << refused;
    EXPECT_THAT(std::string(message_of(refused)), HasSubstr(path));
    return std::string(message_of(refused));
  }

  std::string folder_ = ::testing::TempDir() + "gradrail-output-XXXXXX";
};

TEST_F(OutputFile, LeavesNoFileAndNoChange) {
  for (const OutputKind kind : {OutputKind::replaced, OutputKind::in_place}) {
    EXPECT_TRUE(check_output_file(file("new"), kind).ok());
    EXPECT_THAT(names_in(folder_), IsEmpty());
  }
  std::ofstream(file("old")) << "text";
  std::ofstream(file("old.tmp")) << "of another run";
  for (const OutputKind kind : {OutputKind::replaced, OutputKind::in_place})
    EXPECT_TRUE(check_output_file(file("old"), kind).ok());
  EXPECT_TRUE(check_output_folder(folder_).ok());
  EXPECT_THAT(names_in(folder_), ElementsAre("old", "old.tmp"));
  EXPECT_EQ(*read_file(file("old"), 100), "text");
  EXPECT_EQ(*read_file(file("old.tmp"), 100), "of another run");
}

TEST_F(OutputFile, NamesTheCause) {
  std::ofstream(file("plain")) << "text";
  for (const OutputKind kind : {OutputKind::replaced, OutputKind::in_place}) {
    EXPECT_THAT(refusal(folder_, kind), HasSubstr("it is a folder"));
    EXPECT_THAT(refusal(file("new/"), kind), HasSubstr("it is a folder"));
    EXPECT_THAT(refusal(file("none/new"), kind), HasSubstr("No such file or directory"));
    EXPECT_THAT(refusal(file("plain/new"), kind), HasSubstr("Not a directory"));
    EXPECT_THAT(refusal(file(std::string(300, 'n')), kind), HasSubstr("File name too long"));
    // The permission of these folders is that of root.
    refusal("/proc/new", kind);
    refusal("/sys/kernel/new", kind);
  }
  EXPECT_FALSE(check_output_folder("/proc").ok());
  EXPECT_FALSE(check_output_folder("/sys/kernel").ok());
  EXPECT_FALSE(check_output_folder(file("plain")).ok());
}

TEST_F(OutputFile, PipesDevicesAndLinksAreWrittenInPlace) {
  ASSERT_EQ(mkfifo(file("pipe").c_str(), 0600), 0);
  std::filesystem::create_symlink("later", file("link"));
  std::filesystem::create_symlink("none/later", file("wrong"));
  EXPECT_TRUE(check_output_file(file("pipe"), OutputKind::in_place).ok());
  EXPECT_TRUE(check_output_file("/dev/null", OutputKind::in_place).ok());
  EXPECT_TRUE(check_output_file(file("link"), OutputKind::in_place).ok());
  EXPECT_FALSE(check_output_file(file("wrong"), OutputKind::in_place).ok());
  EXPECT_THAT(refusal(file("pipe"), OutputKind::replaced), HasSubstr("not a regular file"));
  EXPECT_THAT(refusal("/dev/null", OutputKind::replaced), HasSubstr("not a regular file"));
  EXPECT_THAT(names_in(folder_), ElementsAre("link", "pipe", "wrong"));
}

}  // namespace
}  // namespace gradrail
