// Files of kernels, devices and libraries with other texts than expected. Any report passes; a crash or a hang fails.
#include <filesystem>
#include <fstream>
#include <random>

#include "gmock/gmock.h"
#include "tests/tools/doctor/recorded_host.h"

namespace gradrail::tools::doctor {
namespace {

namespace fs = std::filesystem;

/// The healthy host, saved to a folder.
class DamagedFiles : public testing::Test {
 protected:
  DamagedFiles() { healthy_host().save(scratch_.path()); }

  std::string examine_it() const {
    const Report report = examine(system_of(scratch_.path()), {.prove = false, .required = {"rdma", "gpu-direct"}});
    EXPECT_GT(report.checks.size(), 15u);
    const std::string text = to_text(report, false);
    for (const char c : text) EXPECT_TRUE(c == '\n' || (c >= ' ' && c <= '~')) << static_cast<int>(c);
    return text + to_json(report);
  }

  template <typename Damage>
  void damage_all(Damage&& damage) {
    std::vector<fs::path> files;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(scratch_.path()))
      if (entry.is_regular_file() && !entry.is_symlink()) files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    for (const fs::path& file : files) damage(file);
  }

  const Scratch scratch_;
};

TEST_F(DamagedFiles, Garbage) {
  std::mt19937 random(1);
  for (int round = 0; round < 8; ++round) {
    damage_all([&](const fs::path& file) {
      std::string bytes(random() % 6000, '\0');
      for (char& byte : bytes) byte = static_cast<char>(random());
      std::ofstream(file, std::ios::binary) << bytes;
    });
    examine_it();
  }
}

TEST_F(DamagedFiles, CutAndDoubled) {
  std::mt19937 random(2);
  for (int round = 0; round < 10; ++round) {
    damage_all([&](const fs::path& file) {
      std::ifstream stream(file, std::ios::binary);
      std::string text{std::istreambuf_iterator<char>(stream), {}};
      if (random() % 2 == 0) text = text.substr(0, random() % (text.size() + 1));
      if (random() % 3 == 0) text += text;
      std::ofstream(file, std::ios::binary) << text;
    });
    examine_it();
    fs::remove_all(scratch_.path());
    healthy_host().save(scratch_.path());
  }
}

TEST_F(DamagedFiles, Empty) {
  damage_all([](const fs::path& file) { std::ofstream(file, std::ios::trunc); });
  examine_it();
}

TEST_F(DamagedFiles, NamesWithEscapeSequences) {
  fs::create_directories(scratch_.path() + "/sys/class/infiniband/\033[2Jmlx5\n/ports/\033]0;1");
  fs::create_directories(scratch_.path() + "/sys/class/infiniband_verbs/\033[31m");
  std::ofstream(scratch_.path() + "/proc/sys/kernel/osrelease") << "6.1\033[2J\xff\xfe\n";
  EXPECT_EQ(examine_it().find('\033'), std::string::npos);
}

TEST_F(DamagedFiles, ACapabilityListWithoutAnEnd) {
  std::string config = config_space(0);
  for (const size_t at : {0x100u, 0x148u}) {  // each names the other as the next
    const uint32_t header = (at == 0x100 ? 0x148u : 0x100u) << 20 | 0x00010001;
    for (size_t i = 0; i < 4; ++i) config[at + i] = static_cast<char>(header >> (8 * i) & 0xff);
  }
  damage_all([&](const fs::path& file) {
    if (file.filename() == "config") std::ofstream(file, std::ios::binary) << config;
  });
  examine_it();
}

}  // namespace
}  // namespace gradrail::tools::doctor
