#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/topology/machine_builder.h"
#include "topology/plan/plan.h"

namespace gradrail::topology {
namespace {

using ::testing::HasSubstr;

/// Eight cores (the last one closed), four GPUs and a NIC.
Machine machine() {
  MachineBuilder builder({.cores_per_node = 8});
  const int root = builder.root(0, 0);
  for (int i = 0; i < 4; ++i) builder.gpu(root, i == 3 ? Vendor::amd : Vendor::nvidia);
  builder.nic(root);
  builder.close({7});
  return std::move(builder.machine());
}

Request one_worker() { return {.processes = {{Job::worker, 0, 0}}}; }

void expect_refused(const Request& request, const std::string& message) {
  const absl::Status status = plan(machine(), request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

TEST(PlanRefusal, DevicesThatAreNotThere) {
  Request request = one_worker();
  request.gpus = {"7"};
  expect_refused(request, "--gpu 7: this machine has 4 GPUs, 0 to 3");
  request.gpus = {"3"};
  expect_refused(request, "no code for AMD");
  request.gpus = {};
  request.nics = {"mlx5_9"};
  expect_refused(request, "--nic mlx5_9: this machine has mlx5_0");
  request.nics = {"ib0", "05:00.0"};
  expect_refused(request, "named twice");
}

TEST(PlanRefusal, CpusThatAreNotThereOrNotOurs) {
  Request request = one_worker();
  request.cores = CpuSet{1, 8, 9};
  expect_refused(request, "--cores 1,8-9: this machine has no cpu 8-9; it has 0-7");
  request.cores = CpuSet{6, 7};
  expect_refused(request, "may not run on 7");
  request.cores = CpuSet();
  expect_refused(request, "--cores names no cpu");
  request.cores = CpuSet{1, 2};
  request.reserved = {1, 2};
  expect_refused(request, "--reserve 1-2 leaves none of the cpus 1-2");
}

TEST(PlanRefusal, NumbersOutOfAllBounds) {
  Request request = one_worker();
  request.cores_per_tower = -1;
  expect_refused(request, "-1 cores per tower");
  for (const int units : {-1, 5000, 2'000'000'000}) {
    request = {.processes = {{Job::worker, 0, units}}};
    expect_refused(request, "1 to 4096 would be right");
  }
  request = {.processes = {{Job::worker, 0, 4000}, {Job::worker, 1, 4000}}};
  expect_refused(request, "8000 towers and shards on one host");
  expect_refused({.processes = {{Job::ps, 0, 0}}}, "ps 0: 0 shards");
  expect_refused({.processes = {{Job::ps, -4, 1}}}, "tasks count from 0");
  expect_refused({.processes = {{Job::ps, 1, 1}, {Job::ps, 1, 2}}}, "ps 1 is listed twice");
}

TEST(PlanRefusal, MoreTowersThanGpus) {
  Request request{.processes = {{Job::worker, 0, 4}}, .towers = Towers::gpu};
  expect_refused(request,
                 "4 towers were to be on GPUs, and 3 can be used (gpu3: there is no code for AMD GPUs (ROCm is not "
                 "supported)): ask for fewer towers");
  request.processes[0].units = 3;
  EXPECT_TRUE(plan(machine(), request).ok());
}

TEST(PlanRefusal, NoCpuAtAll) {
  EXPECT_THAT(std::string(plan(Machine(), one_worker()).status().message()), HasSubstr("no cpu of this machine"));
  const absl::StatusOr<Placement> empty_plan = plan(machine(), Request());
  ASSERT_TRUE(empty_plan.ok());
  EXPECT_TRUE(empty_plan->towers.empty());
}

}  // namespace
}  // namespace gradrail::topology
