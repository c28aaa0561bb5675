#include "tools/doctor/tree.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "tests/tools/doctor/recorded_host.h"

namespace gradrail::tools::doctor {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

Tree open(const std::string& root) {
  absl::StatusOr<Tree> tree = Tree::open(root);
  EXPECT_TRUE(tree.ok()) << tree.status();
  return *std::move(tree);
}

TEST(Tree, ReadsBelowItsRoot) {
  const Scratch scratch;
  RecordedHost()
      .write("/sys/a/b", "  one \ntwo")
      .link("/sys/c", "a")
      .link("/abs", "/sys/a/b")
      .link("/etc/x/abs", "/sys/a/b")
      .save(scratch.path());
  Tree tree = open(scratch.path());
  EXPECT_EQ(tree.line("/sys/a/b"), "one");
  EXPECT_EQ(tree.line("/sys/c/b"), "one");
  EXPECT_EQ(tree.line("/abs"), "one");
  EXPECT_EQ(tree.line("/etc/x/abs"), "one");
  EXPECT_EQ(tree.link("/sys/c"), "a");
  EXPECT_EQ(tree.link_name("/abs"), "b");
  EXPECT_THAT(tree.names("/sys"), ElementsAre("a", "c"));
  EXPECT_EQ(tree.read("/sys/none").error, ENOENT);
  EXPECT_FALSE(tree.is_live());
}

TEST(Tree, LinksDoNotLeadOutOfIt) {
  const Scratch outside;
  RecordedHost().write("/secret", "secret").save(outside.path());
  const Scratch scratch;
  RecordedHost()
      .link("/up", "../../../../../../../../../.." + outside.path() + "/secret")
      .link("/absolute", outside.path() + "/secret")
      .write("/inside", "x")
      .save(scratch.path());
  Tree tree = open(scratch.path());
  EXPECT_EQ(tree.read("/up").error, ENOENT);
  EXPECT_EQ(tree.read("/absolute").error, ENOENT);
  EXPECT_EQ(tree.line("/../../inside"), "x");
}

TEST(Tree, ARecordingAnswersAsItsSource) {
  const Scratch source, copy;
  healthy_host().save(source.path());
  Tree tree = open(source.path());
  ASSERT_TRUE(tree.record_to(copy.path()).ok());
  System system(std::move(tree));
  const std::string first = to_json(examine(system, {}));
  ASSERT_TRUE(system.tree().recording().ok()) << system.tree().recording();
  System again(open(copy.path()));
  EXPECT_EQ(to_json(examine(again, {})), first);
}

TEST(Tree, IsNotRecordedOverSomethingElse) {
  const Scratch scratch;
  RecordedHost().write("/mine", "x").save(scratch.path());
  Tree tree = open("");
  EXPECT_EQ(tree.record_to(scratch.path()).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(tree.record_to("/proc/none/here").code(), absl::StatusCode::kFailedPrecondition);
}

/// A path that has 3950 bytes together with `root`. The name of the recording has 200 bytes more: there the path
/// exceeds PATH_MAX.
std::string deep_path(const std::string& root) {
  std::string path;
  while (root.size() + path.size() < 3600) path += "/" + std::string(99, 'd');
  return path + "/" + std::string(3950 - root.size() - path.size() - 1 - 150 - 1, 'e') + "/" + std::string(150, 'f');
}

/// std::filesystem threw an exception for a path that cannot be read in the recording.
TEST(Tree, AFailedRecordingOfAFileIsAnError) {
  const Scratch source, copy;
  const std::string path = deep_path(source.path());
  RecordedHost().write(path, "x").save(source.path());
  Tree tree = open(source.path());
  ASSERT_TRUE(tree.record_to(copy.path() + "/" + std::string(199, 'r')).ok());
  EXPECT_TRUE(tree.exists(path));
  EXPECT_THAT(std::string(tree.recording().message()), HasSubstr("File name too long"));
}

TEST(Tree, AFailedRecordingOfALinkIsAnError) {
  const Scratch source, copy;
  const std::string path = deep_path(source.path());
  RecordedHost().link(path, "target").save(source.path());
  Tree tree = open(source.path());
  ASSERT_TRUE(tree.record_to(copy.path() + "/" + std::string(199, 'r')).ok());
  EXPECT_EQ(tree.link(path), "target");
  EXPECT_THAT(std::string(tree.recording().message()), HasSubstr("File name too long"));
}

TEST(Tree, TheRootMustBeAFolder) {
  const Scratch scratch;
  EXPECT_EQ(Tree::open(scratch.path()).status().code(), absl::StatusCode::kNotFound);
  std::ofstream(scratch.path()) << "x";
  EXPECT_EQ(Tree::open(scratch.path()).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace gradrail::tools::doctor
