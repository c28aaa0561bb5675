#include "bench/cluster/ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

namespace gradrail::bench {
namespace {

using ::testing::HasSubstr;

/// The environment of the test may contain the variables of a launcher.
class Ranks : public ::testing::Test {
 protected:
  Ranks() {
    for (const char* name : kAll) unsetenv(name);
  }
  ~Ranks() override {
    for (const char* name : kAll) unsetenv(name);
  }
  static void set(const char* name, const char* value) { setenv(name, value, 1); }

  static constexpr const char* kAll[] = {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID",
                                         "SLURM_STEP_NODELIST",  "OMPI_COMM_WORLD_SIZE",
                                         "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
                                         "WORLD_SIZE",           "RANK",
                                         "MASTER_ADDR"};
  ClusterOptions options_;
};

TEST_F(Ranks, AloneWithoutALauncher) {
  set("SLURM_PROCID", "0");  // a batch script has this
  EXPECT_EQ(place_of(options_)->size, 1u);
}

TEST_F(Ranks, OfSlurm) {
  set("SLURM_STEP_NUM_TASKS", "4");
  set("SLURM_PROCID", "3");
  set("SLURM_STEP_NODELIST", "n[1-2]");
  options_.servers = 2;
  const absl::StatusOr<Place> place = place_of(options_);
  EXPECT_EQ(place->rank, 3u);
  EXPECT_EQ(place->size, 4u);
  EXPECT_EQ(place->servers, 2u);
  EXPECT_THAT(place->rendezvous, HasSubstr("n1:"));
}

TEST_F(Ranks, OfMpirun) {
  set("OMPI_COMM_WORLD_SIZE", "3");
  set("OMPI_COMM_WORLD_RANK", "1");
  set("OMPI_COMM_WORLD_LOCAL_SIZE", "3");
  EXPECT_THAT(place_of(options_)->rendezvous, HasSubstr("127.0.0.1:"));
  set("OMPI_COMM_WORLD_LOCAL_SIZE", "1");
  EXPECT_THAT(std::string(place_of(options_).status().message()), HasSubstr("--rendezvous tcp://HOST:PORT"));
  options_.rendezvous = *launch::parse_tcp_rendezvous("tcp://n7:4000");
  EXPECT_EQ(place_of(options_)->rendezvous, "n7:4000");
}

TEST_F(Ranks, TheInnermostLauncherCounts) {
  set("SLURM_STEP_NUM_TASKS", "2");
  set("SLURM_PROCID", "0");
  set("SLURM_STEP_NODELIST", "n[1-2]");
  set("OMPI_COMM_WORLD_SIZE", "3");
  set("OMPI_COMM_WORLD_RANK", "2");
  set("OMPI_COMM_WORLD_LOCAL_SIZE", "3");
  EXPECT_EQ(place_of(options_)->from, "mpirun");
  set("WORLD_SIZE", "4");
  set("RANK", "3");
  set("MASTER_ADDR", "n9");
  EXPECT_EQ(place_of(options_)->rank, 3u);
}

TEST_F(Ranks, FlagsOfAClusterWithoutOne) {
  options_.rendezvous = *launch::parse_tcp_rendezvous("tcp://n7:4000");
  EXPECT_THAT(std::string(place_of(options_).status().message()), HasSubstr("--rendezvous tcp://n7:4000"));
  options_.job_name = "worker";
  EXPECT_THAT(std::string(place_of(options_).status().message()), HasSubstr("--job_name worker"));
}

TEST_F(Ranks, OfACluster) {
  options_.ps_hosts = "a:1,b:2";
  options_.worker_hosts = "c:3,d:4";
  options_.job_name = "worker";
  options_.task_index = 1;
  const absl::StatusOr<Place> place = place_of(options_);
  EXPECT_EQ(place->rank, 3u);
  EXPECT_EQ(place->size, 4u);
  EXPECT_EQ(place->servers, 2u);
  EXPECT_EQ(place->rendezvous, "a:1");
  options_.task_index = 2;
  EXPECT_THAT(std::string(place_of(options_).status().message()), HasSubstr("2 workers"));
  options_.job_name = "";
  EXPECT_FALSE(place_of(options_).ok());
}

TEST_F(Ranks, AMeasurementNeedsAllWorkers) {
  options_.cluster = testing::TempDir() + "sparse_cluster.json";
  std::ofstream(options_.cluster) << R"({"ps": ["a:1"], "worker": {"1": "c:3"}})";
  options_.job_name = "worker";
  options_.task_index = 1;
  const absl::Status refused = place_of(options_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr(options_.cluster + ": leaves out workers"));
}

TEST_F(Ranks, ServersNeedWorkers) {
  set("WORLD_SIZE", "2");
  set("RANK", "0");
  set("MASTER_ADDR", "n9");
  options_.servers = 2;
  EXPECT_THAT(std::string(place_of(options_).status().message()), HasSubstr("--ps 2"));
}

}  // namespace
}  // namespace gradrail::bench
