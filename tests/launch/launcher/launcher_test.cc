#include "launch/launcher/launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace gradrail::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Environment = std::map<std::string, std::string>;

absl::StatusOr<std::optional<Launch>> read(
    const Environment& environment,
    const PmixQuery& query = [] { return absl::StatusOr<PmixJob>(absl::UnavailableError("no server")); }) {
  return read_launcher(
      [&](const char* name) -> const char* {
        const auto found = environment.find(name);
        return found == environment.end() ? nullptr : found->second.c_str();
      },
      query);
}

Launch launched(const Environment& environment) {
  const absl::StatusOr<std::optional<Launch>> launch = read(environment);
  EXPECT_TRUE(launch.ok()) << launch.status();
  EXPECT_TRUE(launch.ok() && launch->has_value());
  return launch.ok() ? launch->value_or(Launch{}) : Launch{};
}

std::string refused(const Environment& environment) {
  const absl::StatusOr<std::optional<Launch>> launch = read(environment);
  EXPECT_EQ(launch.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(launch.status().message());
}

Environment with(Environment environment, const Environment& more) {
  for (const auto& [name, value] : more) environment[name] = value;
  return environment;
}

Environment without(Environment environment, const std::string& name) {
  environment.erase(name);
  return environment;
}

const Environment kSlurm{{"SLURM_JOB_ID", "17"},
                         {"SLURM_STEP_ID", "0"},
                         {"SLURM_STEP_NUM_TASKS", "4"},
                         {"SLURM_PROCID", "3"},
                         {"SLURM_STEP_NODELIST", "n[2-3]"},
                         {"SLURMD_NODENAME", "n3"}};
const Environment kMpirun{{"OMPI_COMM_WORLD_SIZE", "4"},
                          {"OMPI_COMM_WORLD_RANK", "1"},
                          {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                          {"PMIX_NAMESPACE", "991"}};
const Environment kTorchrun{{"WORLD_SIZE", "3"}, {"RANK", "2"}, {"MASTER_ADDR", "n9"}, {"MASTER_PORT", "29500"}};

TEST(ExpandNodes, ExpandsListsOfSlurm) {
  EXPECT_THAT(*expand_nodes("node7"), ElementsAre("node7"));
  EXPECT_THAT(*expand_nodes("a,b"), ElementsAre("a", "b"));
  EXPECT_THAT(*expand_nodes("node[03-05,9],x7"), ElementsAre("node03", "node04", "node05", "node9", "x7"));
  EXPECT_THAT(*expand_nodes("n[18446744073709551615]"), ElementsAre("n18446744073709551615"));
  EXPECT_THAT(*expand_nodes("x7,rack[2,4]-node"), ElementsAre("x7", "rack2-node", "rack4-node"));
  EXPECT_THAT(*expand_nodes("r[1-2]n[8-9]"), ElementsAre("r1n8", "r1n9", "r2n8", "r2n9"));
  EXPECT_THAT(*expand_nodes("n[098-101]"), ElementsAre("n098", "n099", "n100", "n101"));
  EXPECT_EQ(expand_nodes("n[1-65536]")->size(), 65536u);
}

TEST(ExpandNodes, RefusesOtherTexts) {
  for (const char* bad :
       {"", ",", "a,", "n[", "n[]", "n]", "n[1-", "n[1-]", "n[-1]", "n[3-1]", "n[1-2", "n[a]", "n[1,,2]", "n[1-65537]",
        "n[0-18446744073709551615]", "n[000000000000000000001]", "n[1-999][1-999]", "a[1-40000],b[1-40000]"}) {
    EXPECT_EQ(expand_nodes(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST(Launcher, WithoutALauncherOrWithOneTask) {
  for (const Environment& environment :
       {Environment{}, Environment{{"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "17"}},
        with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}}),
        with(kTorchrun, {{"WORLD_SIZE", "1"}, {"RANK", "0"}}), Environment{{"RANK", ""}, {"WORLD_SIZE", ""}}}) {
    const absl::StatusOr<std::optional<Launch>> launch = read(environment);
    ASSERT_TRUE(launch.ok()) << launch.status();
    EXPECT_FALSE(launch->has_value());
  }
}

TEST(Launcher, Slurm) {
  const Launch launch = launched(kSlurm);
  EXPECT_EQ(launch.rank, 3u);
  EXPECT_EQ(launch.size, 4u);
  EXPECT_EQ(launch.node, "n3");
  EXPECT_EQ(launch.job, "Slurm job 17 step 0");
  EXPECT_THAT(launch.rendezvous, HasSubstr("n2:"));
  EXPECT_THAT(launched(with(kSlurm, {{"SLURM_STEP_NODELIST", "n2"}})).rendezvous, HasSubstr("127.0.0.1:"));
  EXPECT_EQ(launched(without(kSlurm, "SLURM_STEP_NODELIST")).rendezvous, "");
}

TEST(Launcher, JobsOfOneHostMeetAtDifferentPorts) {
  const std::string first = launched(kSlurm).rendezvous;
  EXPECT_EQ(launched(with(kSlurm, {{"SLURM_PROCID", "0"}})).rendezvous, first);
  EXPECT_NE(launched(with(kSlurm, {{"SLURM_JOB_ID", "18"}})).rendezvous, first);
  EXPECT_NE(launched(with(kSlurm, {{"SLURM_STEP_ID", "1"}})).rendezvous, first);
  EXPECT_NE(launched(kMpirun).rendezvous, launched(with(kMpirun, {{"PMIX_NAMESPACE", "992"}})).rendezvous);
}

TEST(Launcher, Mpirun) {
  const Launch launch = launched(kMpirun);
  EXPECT_EQ(launch.rank, 1u);
  EXPECT_EQ(launch.size, 4u);
  EXPECT_EQ(launch.job, "mpirun job 991");
  EXPECT_THAT(launch.rendezvous, HasSubstr("127.0.0.1:"));
  const Environment apart = with(kMpirun, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_EQ(launched(apart).rendezvous, "");
  EXPECT_EQ(launched(apart).why_unknown, "no server");
  EXPECT_EQ(launched(without(apart, "PMIX_NAMESPACE")).why_unknown, "PMIX_NAMESPACE is not set");
  EXPECT_THAT(launched(with(apart, {{"MASTER_ADDR", "n4"}})).rendezvous, HasSubstr("n4:"));
}

PmixQuery pmix(uint32_t size, uint32_t local_size, std::string first_host) {
  return [=] { return absl::StatusOr<PmixJob>({.size = size, .local_size = local_size, .first_host = first_host}); };
}

TEST(Launcher, MpirunOnSeveralHostsByPmix) {
  const Environment apart = with(kMpirun, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  const auto launch = read(apart, pmix(4, 2, "n7"));
  ASSERT_TRUE(launch.ok() && launch->has_value());
  EXPECT_THAT((*launch)->rendezvous, HasSubstr("n7:"));
  EXPECT_EQ((*read(apart, pmix(1, 1, "n7")))->why_unknown, "PMIx describes a job of 1 processes");
  EXPECT_THAT(std::string(read(apart, pmix(4, 2, "not a host")).status().message()),
              HasSubstr("the host of rank 0 in PMIx"));
}

TEST(Launcher, Pmix) {
  const Environment environment{{"PMIX_RANK", "3"}, {"PMIX_NAMESPACE", "prterun-7"}};
  const auto launch = read(environment, pmix(4, 2, "n7"));
  ASSERT_TRUE(launch.ok() && launch->has_value());
  EXPECT_EQ((*launch)->rank, 3u);
  EXPECT_EQ((*launch)->size, 4u);
  EXPECT_EQ((*launch)->job, "PMIx job prterun-7");
  EXPECT_THAT((*launch)->rendezvous, HasSubstr("n7:"));
  EXPECT_THAT((*read(environment, pmix(4, 4, "n7")))->rendezvous, HasSubstr("127.0.0.1:"));
  EXPECT_FALSE(read({{"PMIX_RANK", "0"}, {"PMIX_NAMESPACE", "x"}}, pmix(1, 1, "n7"))->has_value());
  EXPECT_THAT(refused(environment), HasSubstr("no server (unset a leftover variable)"));
  EXPECT_THAT(refused(with(environment, {{"PMIX_RANK", "x"}})), HasSubstr("PMIX_RANK=x"));
  for (const uint32_t size : {3u, 0u, UINT32_MAX})
    EXPECT_THAT(std::string(read(environment, pmix(size, 1, "n7")).status().message()), HasSubstr("not a rank"))
        << size;
}

TEST(Launcher, Torchrun) {
  const Launch launch = launched(kTorchrun);
  EXPECT_EQ(launch.rank, 2u);
  EXPECT_EQ(launch.size, 3u);
  EXPECT_EQ(launch.rendezvous, "n9:29500");
  EXPECT_EQ(launched(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}})).rendezvous, "n9:29501");
  EXPECT_THAT(launched(without(kTorchrun, "MASTER_PORT")).rendezvous, HasSubstr("n9:"));
  EXPECT_EQ(launched(without(kTorchrun, "MASTER_ADDR")).rendezvous, "");
  EXPECT_THAT(refused(with(kTorchrun, {{"MASTER_PORT", "70000"}})), HasSubstr("MASTER_PORT=70000"));
}

TEST(Launcher, HalfAPairIsAnError) {
  for (const auto& [all, name] :
       {std::pair(kSlurm, "SLURM_PROCID"), std::pair(kMpirun, "OMPI_COMM_WORLD_RANK"),
        std::pair(kMpirun, "OMPI_COMM_WORLD_SIZE"), std::pair(kTorchrun, "RANK"), std::pair(kTorchrun, "WORLD_SIZE")}) {
    EXPECT_THAT(refused(without(all, name)), HasSubstr(std::string(name) + " is not set"));
  }
}

TEST(Launcher, NumbersMustBeValidAndSmall) {
  for (const char* bad : {"x", "-1", "4x", "4294967296", "1e3", " 1"}) {
    EXPECT_THAT(refused(with(kTorchrun, {{"RANK", bad}})), HasSubstr(std::string("RANK=") + bad)) << bad;
  }
  EXPECT_THAT(refused(with(kMpirun, {{"OMPI_COMM_WORLD_RANK", "4"}})), HasSubstr("not less than"));
  EXPECT_THAT(refused(with(kSlurm, {{"SLURM_STEP_NODELIST", "n["}})), HasSubstr("SLURM_STEP_NODELIST"));
}

/// Each process would otherwise be a run of its own, and nothing would say so.
TEST(Launcher, VariablesThatCannotBeUsedAreErrors) {
  EXPECT_THAT(refused({{"SLURM_PROCID", "1"}, {"SLURM_JOB_ID", "17"}}), HasSubstr("SLURM_STEP_NUM_TASKS is not set"));
  EXPECT_THAT(refused({{"PMIX_RANK", "1"}}), HasSubstr("PMIX_NAMESPACE is not set"));
  EXPECT_THAT(refused({{"PMIX_NAMESPACE", "x"}}), HasSubstr("PMIX_RANK is not set"));
  EXPECT_THAT(refused({{"DMLC_ROLE", "server"}, {"DMLC_NUM_WORKER", "1"}}),
              HasSubstr("DMLC_NUM_WORKER=1 DMLC_ROLE=server is of a launcher"));
  EXPECT_THAT(refused({{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}}), HasSubstr("PMI_RANK=1 PMI_SIZE=4"));
  EXPECT_THAT(refused({{"PMI_RANK", "1"}}), HasSubstr("PMI_RANK=1 PMI_SIZE= is of a launcher"));
  EXPECT_THAT(refused({{"MV2_COMM_WORLD_RANK", "0"}, {"MV2_COMM_WORLD_SIZE", "2"}}),
              HasSubstr("MV2_COMM_WORLD_SIZE=2"));
  // MPICH starts its agents by srun, one on each node.
  EXPECT_THAT(
      refused(
          with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}, {"PMI_RANK", "1"}, {"PMI_SIZE", "4"}})),
      HasSubstr("PMI_SIZE=4"));
  EXPECT_EQ(launched(with(kSlurm, {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}})).rank, 3u) << "those of srun";
  EXPECT_EQ(launched(with(kTorchrun, {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}})).size, 3u) << "torchrun is the inner one";
  EXPECT_FALSE(read({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}})->has_value());
}

Environment worker_variables_of(const Environment& environment, uint32_t index, const std::vector<std::string>& hosts,
                                const std::string& first_host) {
  Environment changed = environment;
  for (const auto& [name, value] : worker_variables(
           [&](const char* wanted) -> const char* {
             const auto found = environment.find(wanted);
             return found == environment.end() ? nullptr : found->second.c_str();
           },
           index, hosts, first_host)) {
    changed[name] = value;
  }
  return changed;
}

TEST(WorkerVariables, CountTheWorkersAlone) {
  // Rank 0 is a ps on host a; its workers have the ranks 1 (on a) and 2, 3 (on b).
  const Environment rank_3{
      {"RANK", "3"},        {"WORLD_SIZE", "4"},       {"LOCAL_RANK", "1"},   {"LOCAL_WORLD_SIZE", "2"},
      {"GROUP_RANK", "1"},  {"GROUP_WORLD_SIZE", "2"}, {"ROLE_RANK", "3"},    {"ROLE_WORLD_SIZE", "4"},
      {"MASTER_ADDR", "a"}, {"MASTER_PORT", "29500"},  {"SLURM_JOB_ID", "17"}};
  Environment expected =
      with(rank_3, {{"RANK", "2"}, {"WORLD_SIZE", "3"}, {"ROLE_RANK", "2"}, {"ROLE_WORLD_SIZE", "3"}});
  EXPECT_EQ(worker_variables_of(rank_3, 2, {"a", "b", "b"}, "a"), expected);
  // Rank 1 shares its host with the ps, and is the only worker there.
  expected =
      with(expected,
           {{"RANK", "0"}, {"ROLE_RANK", "0"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}, {"GROUP_RANK", "0"}});
  EXPECT_EQ(worker_variables_of(with(rank_3, {{"RANK", "1"}, {"GROUP_RANK", "0"}}), 0, {"a", "b", "b"}, "a"), expected);
}

TEST(WorkerVariables, RanksMayAlternateBetweenHosts) {
  const Environment slurm{
      {"SLURM_PROCID", "4"}, {"SLURM_NTASKS", "6"}, {"SLURM_STEP_NUM_TASKS", "6"}, {"SLURM_LOCALID", "2"}};
  const Environment expected{
      {"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_LOCALID", "1"}};
  EXPECT_EQ(worker_variables_of(slurm, 2, {"a", "b", "a", "b"}, "a"), expected);
}

TEST(WorkerVariables, OfEachLauncher) {
  const Environment mpirun{{"OMPI_COMM_WORLD_RANK", "2"},
                           {"OMPI_COMM_WORLD_SIZE", "3"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                           {"OMPI_COMM_WORLD_NODE_RANK", "2"},
                           {"PMIX_RANK", "2"},
                           {"PMI_RANK", "2"},
                           {"PMI_SIZE", "3"}};
  const Environment expected{{"OMPI_COMM_WORLD_RANK", "1"},
                             {"OMPI_COMM_WORLD_SIZE", "2"},
                             {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                             {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                             {"OMPI_COMM_WORLD_NODE_RANK", "1"},
                             {"PMIX_RANK", "1"},
                             {"PMI_RANK", "1"},
                             {"PMI_SIZE", "2"}};
  EXPECT_EQ(worker_variables_of(mpirun, 1, {"127.0.0.1", "127.0.0.1"}, "127.0.0.1"), expected);
  EXPECT_EQ(worker_variables_of({}, 0, {"a"}, "b"), Environment{});
}

TEST(WorkerVariables, TheProgramMeetsWhereItsRank0Is) {
  const Environment torchrun{{"MASTER_ADDR", "a"}, {"MASTER_PORT", "29500"}};
  EXPECT_EQ(worker_variables_of(torchrun, 1, {"b", "c"}, "a"), with(torchrun, {{"MASTER_ADDR", "b"}}));
  EXPECT_EQ(worker_variables_of(torchrun, 1, {"a", "c"}, "a"), torchrun);
  EXPECT_EQ(worker_variables_of(torchrun, 0, {"::1"}, "127.0.0.1"), torchrun);
  const Environment agent = with(torchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  EXPECT_EQ(worker_variables_of(agent, 1, {"b", "c"}, "a"), agent) << "the agent of rank 0 listens there";
}

TEST(Launcher, TheInnermostLauncherCounts) {
  EXPECT_EQ(launched(with(kSlurm, kMpirun)).job, "mpirun job 991");
  EXPECT_EQ(launched(with(with(kSlurm, kMpirun), kTorchrun)).rank, 2u);
}

}  // namespace
}  // namespace gradrail::launch
