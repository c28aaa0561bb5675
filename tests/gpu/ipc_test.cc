// Two processes and one GPU: this program starts itself once more as the peer, which allocates and exports.
#include "gpu/direct/ipc.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <numeric>

#include "base/status.h"
#include "tests/gpu/simulation.h"

namespace gradrail::gpu {
namespace {

using ::testing::HasSubstr;

constexpr int kNoGpu = 77;         // exit code of the peer on a machine without a GPU
constexpr size_t kCount = 600000;  // more than the 2 MiB that the driver shares among small allocations
constexpr size_t kFirst = 1024;    // the exported run begins inside its allocation
constexpr size_t kRun = 50000;

std::vector<float> pattern() {
  std::vector<float> values(kCount);
  std::iota(values.begin(), values.end(), 1.0f);
  return values;
}

/// Reads all of `bytes`, within ten seconds.
bool read_all(int fd, void* data, size_t bytes) {
  for (auto* to = static_cast<char*>(data); bytes > 0;) {
    pollfd ready = {.fd = fd, .events = POLLIN, .revents = 0};
    if (poll(&ready, 1, 10000) != 1) return false;
    const ssize_t got = read(fd, to, bytes);
    if (got <= 0) return false;
    to += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

/// The other process: exports memory on its standard output, waits for its standard input to end, and looks what has
/// become of it. 0: every element of the run was doubled, and no other.
int run_peer() {
  absl::StatusOr<std::unique_ptr<Compute>> compute = open_device(0);
  if (!compute.ok()) return kNoGpu;
  const auto memory = (*compute)->allocate(kCount * sizeof(float));
  std::vector<float> values = pattern();
  (*compute)->upload((*memory)->data(), values.data(), kCount * sizeof(float));
  if (!(*compute)->finish().ok()) return 2;
  const absl::StatusOr<std::string> exported =
      export_memory(**compute, (*memory)->as<float>() + kFirst, kRun * sizeof(float));
  if (!exported.ok()) return 3;
  if (write(STDOUT_FILENO, exported->data(), exported->size()) != static_cast<ssize_t>(exported->size())) return 4;
  char byte = 0;
  if (read_all(STDIN_FILENO, &byte, 1)) return 5;
  std::vector<float> back(kCount);
  if (!(*compute)->wait((*compute)->download(back.data(), (*memory)->data(), kCount * sizeof(float))).ok()) return 6;
  for (size_t i = kFirst; i < kFirst + kRun; ++i) values[i] *= 2;
  return back == values ? 0 : 1;
}

class Peer {
 public:
  Peer() {
    std::array<int, 2> down{}, up{};
    if (pipe2(down.data(), O_CLOEXEC) != 0 || pipe2(up.data(), O_CLOEXEC) != 0) std::abort();
    process_ = fork();
    if (process_ == 0) {
      dup2(down[0], STDIN_FILENO);
      dup2(up[1], STDOUT_FILENO);
      execl("/proc/self/exe", "ipc_test", "--peer", nullptr);
      _exit(9);
    }
    close(down[0]);
    close(up[1]);
    to_ = down[1];
    from_ = up[0];
  }
  ~Peer() {
    end();
    close(from_);
  }

  std::string exported() {
    std::string words(112, '\0');
    return read_all(from_, words.data(), words.size()) ? words : "";
  }

  void kill() { ::kill(process_, SIGKILL); }

  /// Its exit code.
  int end() {
    if (to_ < 0) return code_;
    close(std::exchange(to_, -1));
    int status = 0;
    waitpid(process_, &status, 0);  // the peer's own waits end
    code_ = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return code_;
  }

 private:
  pid_t process_;
  int to_;
  int from_;
  int code_ = -1;
};

class Ipc : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<Compute>> opened = open_device(0);
    if (!opened.ok() && Simulation::tolerates(opened.status())) GTEST_SKIP() << message_of(opened.status());
    ASSERT_TRUE(opened.ok()) << opened.status();
    compute_ = *std::move(opened);
  }
  std::unique_ptr<Compute> compute_;
};

TEST_F(Ipc, AKernelOfOneProcessWorksInTheMemoryOfAnother) {
  Peer peer;
  const std::string exported = peer.exported();
  {
    const auto mapped = map_memory(*compute_, exported);
    ASSERT_TRUE(mapped.ok()) << mapped.status();
    ASSERT_EQ((*mapped)->bytes(), kRun * sizeof(float));
    std::vector<float> back(kRun);
    ASSERT_TRUE(compute_->wait(compute_->download(back.data(), (*mapped)->data(), kRun * sizeof(float))).ok());
    const std::vector<float> all = pattern();
    EXPECT_EQ(back, std::vector<float>(all.begin() + kFirst, all.begin() + kFirst + kRun));
    float* const run = (*mapped)->as<float>();
    const float* sources[] = {run, run};
    compute_->sum(sources, kRun, 1.0f, run);
    ASSERT_TRUE(compute_->finish().ok());
  }
  EXPECT_EQ(peer.end(), 0);
}

TEST_F(Ipc, MapsTheSameMemoryTwice) {
  Peer peer;
  const std::string exported = peer.exported();
  const auto first = map_memory(*compute_, exported);
  ASSERT_TRUE(first.ok()) << first.status();
  const std::vector<float> all = pattern();
  for (int time = 0; time < 2; ++time) {
    const auto second = map_memory(*compute_, exported);
    ASSERT_TRUE(second.ok()) << second.status();
    EXPECT_EQ((*second)->data(), (*first)->data()) << "CUDA counts the owners of one mapping";
    float value = 0;
    ASSERT_TRUE(compute_->wait(compute_->download(&value, (*second)->data(), sizeof(value))).ok());
    EXPECT_EQ(value, all[kFirst]);
  }
  // The end of the second mapping does not end the first.
  float value = 0;
  ASSERT_TRUE(compute_->wait(compute_->download(&value, (*first)->as<float>() + 1, sizeof(value))).ok());
  EXPECT_EQ(value, all[kFirst + 1]);
}

TEST_F(Ipc, AnExporterThatIsKilledUnderKernelsBlocksNothing) {
  Peer peer;
  {
    const auto mapped = map_memory(*compute_, peer.exported());
    ASSERT_TRUE(mapped.ok()) << mapped.status();
    float* const run = (*mapped)->as<float>();
    const float* sources[] = {run, run};
    for (int i = 0; i < 1000; ++i) compute_->sum(sources, kRun, 0.5f, run);
    peer.kill();
    for (int i = 0; i < 1000; ++i) compute_->sum(sources, kRun, 0.5f, run);
    const auto began = std::chrono::steady_clock::now();
    const absl::Status finished = compute_->finish();
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(30));
    // CUDA keeps the memory for the mapping.
    EXPECT_TRUE(finished.ok()) << finished;
  }
  EXPECT_TRUE(open_device(0).ok());
}

TEST_F(Ipc, WhatWasNotExportedIsRefused) {
  Peer peer;
  std::string exported = peer.exported();
  EXPECT_EQ(map_memory(*compute_, "").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(map_memory(*compute_, exported.substr(1)).status().code(), absl::StatusCode::kInvalidArgument);
  std::string other = exported;
  other[0] = 'x';
  EXPECT_EQ(map_memory(*compute_, other).status().code(), absl::StatusCode::kInvalidArgument);
  for (const size_t at : {32u, 40u}) {  // offset, bytes
    std::string misaligned = exported;
    misaligned[at] = static_cast<char>(misaligned[at] + 2);
    const absl::Status status = map_memory(*compute_, misaligned).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << at;
    EXPECT_THAT(std::string(message_of(status)), HasSubstr("whole floats"));
  }
  GRADRAIL_NEEDS_SIMULATION();          // a real driver need not know how long another process' memory is
  for (const size_t at : {32u, 40u}) {  // offset, bytes
    std::string wrong = exported;
    wrong[at + 6] = 1;
    EXPECT_EQ(map_memory(*compute_, wrong).status().code(), absl::StatusCode::kInvalidArgument) << at;
  }
}

TEST_F(Ipc, GpusThatCannotReachEachOtherSayHowToSeeIt) {
  GRADRAIL_NEEDS_SIMULATION();
  Peer peer;
  const std::string exported = peer.exported();
  for (const char* configuration : {"ipc=217", "ipc=711"}) {
    Simulation::configure(configuration);
    const absl::Status status = map_memory(*compute_, exported).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(message_of(status)), HasSubstr("nvidia-smi topo -p2p r"));
  }
  Simulation::configure("");
}

TEST_F(Ipc, AProcessHasItsOwnMemoryAlready) {
  const auto memory = compute_->allocate(1 << 22);
  const absl::StatusOr<std::string> exported = export_memory(*compute_, (*memory)->data(), 1 << 22);
  ASSERT_TRUE(exported.ok()) << exported.status();
  const absl::Status status = map_memory(*compute_, *exported).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(message_of(status)), HasSubstr("it is this process"));
}

TEST_F(Ipc, OnlyMemoryOfTheDeviceCanBeExported) {
  std::vector<float> values(10);
  EXPECT_EQ(export_memory(*compute_, values.data(), 40).status().code(), absl::StatusCode::kInvalidArgument);
  const auto memory = compute_->allocate(1 << 22);
  EXPECT_EQ(export_memory(*compute_, (*memory)->data(), size_t{1} << 40).status().code(),
            absl::StatusCode::kInvalidArgument);
  const std::unique_ptr<Compute> host = host_compute();
  EXPECT_EQ(export_memory(*host, values.data(), 40).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(map_memory(*host, "").status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(Ipc, AProcessThatEndedHasNoMemory) {
  GRADRAIL_NEEDS_SIMULATION();
  Peer peer;
  const std::string exported = peer.exported();
  EXPECT_EQ(peer.end(), 1) << "the parameters were not doubled";
  EXPECT_EQ(map_memory(*compute_, exported).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(Ipc, MappingsLeaveNothingBehind) {
  GRADRAIL_NEEDS_SIMULATION();
  Peer peer;
  const std::string exported = peer.exported();
  const int before = Simulation::objects().allocations;
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(map_memory(*compute_, exported).ok());
  EXPECT_EQ(Simulation::objects().allocations, before);
}

}  // namespace

int ipc_main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--peer") return run_peer();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

}  // namespace gradrail::gpu

int main(int argc, char** argv) { return gradrail::gpu::ipc_main(argc, argv); }
