#include "gpu/driver/driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <tuple>

#include "base/status.h"
#include "fmt/format.h"
#include "gpu/compute/blas.h"
#include "gpu/compute/compute.h"
#include "gpu/compute/device_compute.h"
#include "gpu/driver/device.h"
#include "gpu/driver/library.h"
#include "gpu/kernels/image.h"
#include "tests/gpu/simulation.h"

namespace gradrail::gpu {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StrEq;

constexpr const char* kLibrary = "libcuda.so.1";

std::string words(const absl::Status& status) { return std::string(message_of(status)); }

TEST(Driver, NoneIsAReasonWithARemedy) {
  const absl::Status status = Driver::load("libno_such_driver.so.1").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(words(status),
              AllOf(HasSubstr("no NVIDIA driver"), HasSubstr("libno_such_driver"), HasSubstr("install")));
}

TEST(Driver, ALibraryThatIsNoDriverIsAReason) {
  const absl::Status status = Driver::load("libc.so.6").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(words(status), HasSubstr("libc.so.6 has no cuInit"));
}

TEST(Driver, OneThatIsTooOldSaysWhichIsNeeded) {
  GRADRAIL_NEEDS_SIMULATION();
  Simulation::configure("driver=11020");
  const absl::Status status = Driver::load(kLibrary).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(words(status), AllOf(HasSubstr("CUDA 11.2"), HasSubstr("12.0"), HasSubstr("update the driver")));
  Simulation::configure("driver=12000");
  EXPECT_TRUE(Driver::load(kLibrary).ok());
}

TEST(Driver, OneThatDoesNotStartSaysWhatToDo) {
  GRADRAIL_NEEDS_SIMULATION();
  Simulation::configure("init=803");
  const absl::Status status = Driver::load(kLibrary).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(words(status), AllOf(HasSubstr("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"), HasSubstr("restart the host")));
}

TEST(Driver, WithoutADeviceThereAreNone) {
  GRADRAIL_NEEDS_SIMULATION();
  Simulation::configure("devices=0");
  const auto driver = Driver::load(kLibrary);
  ASSERT_TRUE(driver.ok()) << driver.status();
  EXPECT_EQ(list_devices(**driver)->size(), 0u);
  const absl::Status status = find_device(**driver, 0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(words(status), AllOf(HasSubstr("no GPU 0"), HasSubstr("CUDA_VISIBLE_DEVICES")));
}

TEST(Driver, AWrongOrdinalHearsWhichThereAre) {
  GRADRAIL_NEEDS_SIMULATION();
  Simulation::configure("devices=2");
  for (const int ordinal : {2, -1}) {
    const absl::Status status = open_device(ordinal).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(words(status), AllOf(HasSubstr("GPU 0 (Simulated GPU, 0000:a0:00.0)"), HasSubstr("GPU 1")));
  }
}

TEST(Driver, OneThatIsTooOldForTheKernelsSaysWhichIsNeeded) {
  GRADRAIL_NEEDS_SIMULATION();
  Simulation::configure("driver=12040");
  const auto driver = Driver::load(kLibrary);
  ASSERT_TRUE(driver.ok()) << driver.status();
  const absl::Status opened = DeviceCompute::open(**driver, 0).status();
  // Code of nvcc 12 runs on each driver for CUDA 12; that of nvcc 13 does not.
  if (kernel_image_version() <= 12000) {
    EXPECT_TRUE(opened.ok()) << opened;
  } else {
    EXPECT_EQ(opened.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(words(opened), AllOf(HasSubstr("CUDA 13.0 (driver 580)"), HasSubstr("supports CUDA 12.4"),
                                     HasSubstr("build with nvcc 12")));
  }
}

TEST(Driver, KernelsThatTheDeviceRefusesSayWhatThisBuildHas) {
  GRADRAIL_NEEDS_SIMULATION();
  Simulation::configure("image=refuse");
  const absl::Status status = open_device(0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(words(status), AllOf(HasSubstr("loading kernels"), HasSubstr("CUDA_ERROR_NO_BINARY_FOR_GPU")));
}

TEST(Driver, KernelsAreRefusedWithTheRemedyOfEachCause) {
  GRADRAIL_NEEDS_SIMULATION();
  Simulation::configure("image=refuse,compute=7");
  EXPECT_THAT(words(open_device(0).status()), AllOf(HasSubstr("sm_70, older than"), HasSubstr("sm_80")));
  Simulation::configure("image=nojit");
  const absl::Status status = open_device(0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  if (kernel_image_description().starts_with(kNoKernels)) return;
  EXPECT_THAT(words(status), HasSubstr("libnvidia-ptxjitcompiler"));
}

TEST(Blas, NoneThatIsNewerThanTheDriverIsTried) {
  EXPECT_THAT(blas_library_names(13010),
              ElementsAre(StrEq("libcublas.so.13"), StrEq("libcublas.so.12"), StrEq("libcublas.so.11")));
  EXPECT_THAT(blas_library_names(12040), ElementsAre(StrEq("libcublas.so.12"), StrEq("libcublas.so.11")));
}

TEST(Driver, ADeviceThatDoesNotAnswerIsUnavailable) {
  GRADRAIL_NEEDS_SIMULATION();
  Simulation::configure("devices=1,lose=0@1");
  const auto compute = open_device(0);
  ASSERT_TRUE(compute.ok());
  const auto memory = (*compute)->allocate(4);
  const float* sources[] = {(*memory)->as<float>()};
  (*compute)->sum(sources, 1, 1.0f, (*memory)->as<float>());
  EXPECT_EQ((*compute)->finish().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(open_device(0).status().code(), absl::StatusCode::kUnavailable);
}

TEST(Driver, DescribesItsDevices) {
  GRADRAIL_NEEDS_SIMULATION();
  Simulation::configure("devices=2,memory=64M");
  const auto devices = list_devices();
  ASSERT_TRUE(devices.ok()) << devices.status();
  ASSERT_EQ(devices->size(), 2u);
  const DeviceInfo& device = (*devices)[1];
  EXPECT_EQ(device.label(), "GPU 1 (Simulated GPU, 0000:a1:00.0)");
  EXPECT_EQ(device.memory_bytes, size_t{64} << 20);
  EXPECT_EQ(device.compute_major, 9);
  EXPECT_TRUE(device.dma_buf && device.gpu_direct_rdma && device.pinned_addresses);
  EXPECT_EQ(device.writes_flush, WritesFlush::none);
}

TEST(Libraries, AreFoundInTheFoldersOfCudaAndOfPythonWheels) {
  GRADRAIL_NEEDS_SIMULATION();
  const std::filesystem::path root = std::filesystem::path(::testing::TempDir()) / fmt::format("cuda-{}", getpid());
  const std::string real = fmt::format("{}/libnccl.so.2", std::getenv("LD_LIBRARY_PATH"));
  constexpr const char* kName = "libgradrail-of-a-folder.so.2";
  EXPECT_THAT(words(Library::find({kName}).status()), AllOf(HasSubstr("searched "), HasSubstr("/usr/local/cuda*/lib64"),
                                                            HasSubstr("/../lib/python3*/site-packages/nvidia/*/lib")))
      << "the folder of the first python3 on PATH is one of them";
  for (const auto& [variable, value, folder] :
       {std::tuple{"GRADRAIL_CUDA_LIBRARIES", "/nowhere:{}/given", "given"},
        std::tuple{"CUDA_HOME", "{}/toolkit", "toolkit/lib64"},
        std::tuple{"VIRTUAL_ENV", "{}/venv", "venv/lib/python3.11/site-packages/nvidia/cu13/lib"}}) {
    std::filesystem::create_directories(root / folder);
    std::filesystem::create_symlink(real, root / folder / kName);
    setenv(variable, fmt::format(fmt::runtime(value), root.string()).c_str(), 1);
    const absl::StatusOr<Library> found = Library::find({"libgradrail-nowhere.so.3", kName});
    unsetenv(variable);
    ASSERT_TRUE(found.ok()) << variable << ": " << found.status();
    EXPECT_EQ(found->name(), (root / folder / kName).string());
    EXPECT_NE(found->symbol("ncclGetVersion"), nullptr);
  }
  // An environment of Python whose python3 is the first of the path, and that was not activated.
  const char* const given = std::getenv("PATH");
  ASSERT_NE(given, nullptr);
  const std::string path = given;
  std::filesystem::create_directories(root / "venv/bin");
  std::filesystem::create_symlink("/bin/sh", root / "venv/bin/python3");
  setenv("PATH", fmt::format("/nowhere:{}/venv/bin:{}", root.string(), path).c_str(), 1);
  EXPECT_TRUE(Library::find({kName}).ok());
  setenv("PATH", path.c_str(), 1);
  std::filesystem::remove_all(root);
}

TEST(Driver, FlushesWritesOfNicsWhereTheirOrderDoesNotReachKernels) {
  GRADRAIL_NEEDS_SIMULATION();
  const std::vector<std::pair<const char*, WritesFlush>> cases = {
      {"ordering=200,compute=8", WritesFlush::none},
      {"ordering=100,compute=9", WritesFlush::none},
      {"ordering=100,compute=8", WritesFlush::by_host},
      {"ordering=0,compute=9", WritesFlush::by_host},
      {"ordering=200,coherent=1", WritesFlush::none},
      {"ordering=100,coherent=1", WritesFlush::by_host},
      {"ordering=100,compute=8,flush=0", WritesFlush::read_back}};
  for (const auto& [words, expected] : cases) {
    Simulation::configure(words);
    const auto devices = list_devices();
    ASSERT_TRUE(devices.ok()) << devices.status();
    EXPECT_EQ((*devices)[0].writes_flush, expected) << words;
  }
}

TEST(Driver, AGpuThatAnotherProcessHasForItselfIsAConfigurationError) {
  GRADRAIL_NEEDS_SIMULATION();
  Simulation::configure("open=46");
  const absl::Status refused = open_device(0).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(message_of(refused)), AllOf(HasSubstr("compute mode"), HasSubstr("nvidia-smi")));
}

TEST(Ordinals, AreFoundByAddressHoweverItIsWritten) {
  const std::vector<DeviceInfo> devices = {{.ordinal = 0, .pci_address = "0000:19:00.0"},
                                           {.ordinal = 1, .pci_address = "0000:ab:00.0"},
                                           {.ordinal = 2, .pci_address = "0001:ab:00.0"}};
  std::vector<std::optional<int>> found;
  for (const char* address :
       {"0000:19:00.0", "0000:AB:00.0", "ab:00.0", "00000000:AB:00.0", "0001:ab:00.0", "0000:1a:00.0", "", "x"}) {
    found.push_back(ordinal_at(devices, address));
  }
  EXPECT_THAT(found, ElementsAre(0, 1, 1, 1, 2, std::nullopt, std::nullopt, std::nullopt));
}

}  // namespace
}  // namespace gradrail::gpu
