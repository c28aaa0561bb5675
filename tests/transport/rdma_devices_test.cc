#include "transport/rdma_devices.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace gradrail::transport {
namespace {

namespace fs = std::filesystem;

/// A sysfs of our own.
class RdmaDevices : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "gradrail-sysfs-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& file, const std::string& line) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << line << "\n";
  }
  std::string described() const { return describe_rdma_devices(root_.string()); }

  fs::path root_;
};

TEST_F(RdmaDevices, none_is_said) {
  EXPECT_EQ(described(), "no RDMA device on this host: nothing in /sys/class/infiniband");
}

TEST_F(RdmaDevices, each_port_has_its_state) {
  write("class/infiniband_verbs/uverbs0/ibdev", "mlx5_0");
  write("class/infiniband_verbs/uverbs1/ibdev", "rxe0");
  write("class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE");
  write("class/infiniband/mlx5_0/ports/2/state", "2: INIT");
  write("class/infiniband/rxe0/ports/1/state", "1: DOWN");
  EXPECT_EQ(described(), "mlx5_0 port 1 is active, mlx5_0 port 2 is init, rxe0 port 1 is down");
}

TEST_F(RdmaDevices, one_without_verbs_cannot_be_opened) {
  write("class/infiniband_verbs/uverbs0/ibdev", "mlx5_0");
  write("class/infiniband/mlx5_0/ports/1/state", "");
  write("class/infiniband/rxe0/ports/1/state", "4: ACTIVE");
  EXPECT_EQ(described(), "mlx5_0 port 1 is in an unknown state, rxe0 is being removed, or ib_uverbs is not loaded");
}

}  // namespace
}  // namespace gradrail::transport
