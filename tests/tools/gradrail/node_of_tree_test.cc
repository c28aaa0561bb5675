// --parent: the place of a ps in the cluster of its parent, and what a node of a tree refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "fmt/format.h"
#include "tools/train/train_options.h"

namespace gradrail::tools {
namespace {

using ::testing::HasSubstr;

class ParentFlag : public ::testing::Test {
 protected:
  ParentFlag() {
    // Tests run at the same time, each in a process.
    file_ = ::testing::TempDir() + fmt::format("gradrail-parent-{}.json", getpid());
    std::ofstream(file_) << R"({"ps": ["10.0.0.1"], "worker": ["10.0.1.1", "10.0.2.1:2222"]})";
    options_.start.ps_hosts = "10.0.2.1:2222";
    options_.start.worker_hosts = "10.0.2.2:3000,10.0.2.3:3000";
    options_.start.job_name = "ps";
    options_.start.task_index = 0;
    options_.parent_file = file_;
  }
  ~ParentFlag() override { std::filesystem::remove(file_); }
  std::string refusal() const { return std::string(check_train_options(options_).status().message()); }

  std::string file_;
  TrainOptions options_;
};

TEST_F(ParentFlag, FindsThePlaceOfTheNodeByItsAddress) {
  const absl::StatusOr<TrainOptions> options = check_train_options(options_);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->parent_index, 1u);
  EXPECT_EQ(options->parent.ps, std::vector<std::string>{"10.0.0.1:2222"});
}

TEST_F(ParentFlag, HasNoEffectOnAWorker) {
  options_.start.job_name = "worker";
  const absl::StatusOr<TrainOptions> options = check_train_options(options_);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_TRUE(options->parent.ps.empty());
}

TEST_F(ParentFlag, RefusesANodeThatTheParentDoesNotName) {
  options_.start.ps_hosts = "10.0.3.1:2222";
  EXPECT_THAT(refusal(), HasSubstr("10.0.3.1:2222, the address of this ps, must be one of them"));
}

TEST_F(ParentFlag, RefusesSeveralServersAndTheStateOfARoot) {
  options_.start.ps_hosts = "10.0.2.1:2222,10.0.2.4:2222";
  EXPECT_THAT(refusal(), HasSubstr("a node is the only ps of its workers"));
  options_.start.ps_hosts = "10.0.2.1:2222";
  options_.checkpoint_dir = "/tmp";
  EXPECT_THAT(refusal(), HasSubstr("the root has the parameters"));
  options_.checkpoint_dir.clear();
  options_.ps_device = "gpu:0";
  EXPECT_THAT(refusal(), HasSubstr("the root has the parameters"));
}

}  // namespace
}  // namespace gradrail::tools
