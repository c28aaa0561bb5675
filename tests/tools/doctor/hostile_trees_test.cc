// Malicious or damaged recordings. Any report passes; a crash or a hang fails.
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "base/clock.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "tests/tools/doctor/recorded_host.h"

namespace gradrail::tools::doctor {
namespace {

namespace fs = std::filesystem;

/// Every file of the healthy host, saved to a folder, one by one.
std::vector<fs::path> files_below(const std::string& folder) {
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file() && !entry.is_symlink()) found.push_back(entry.path());
  std::sort(found.begin(), found.end());
  return found;
}

class HostileTrees : public testing::Test {
 protected:
  HostileTrees() { healthy_host().save(scratch_.path()); }

  std::string examine_it(double most_seconds = 20) {
    const TimePoint start = Clock::now();
    absl::StatusOr<Tree> tree = Tree::open(scratch_.path());
    EXPECT_TRUE(tree.ok()) << tree.status();
    System system(*std::move(tree));
    const Report report = examine(system, {.required = {"rdma", "gpu-direct"}});
    EXPECT_LT(seconds_since(start), most_seconds);
    EXPECT_GT(report.checks.size(), 20u);
    const std::string text = to_text(report, false);
    for (const char c : text) EXPECT_TRUE(c == '\n' || (c >= ' ' && c <= '~')) << static_cast<int>(c);
    return text + to_json(report);
  }

  template <typename Spoil>
  void spoil_all(Spoil&& spoil) {
    for (const fs::path& file : files_below(scratch_.path())) spoil(file);
  }

  const Scratch scratch_;
};

TEST_F(HostileTrees, Garbage) {
  std::mt19937 random(1);
  for (int round = 0; round < 8; ++round) {
    spoil_all([&](const fs::path& file) {
      std::string bytes(random() % 6000, '\0');
      for (char& byte : bytes) byte = static_cast<char>(random());
      std::ofstream(file, std::ios::binary) << bytes;
    });
    examine_it();
  }
}

TEST_F(HostileTrees, FilesCutAndDoubled) {
  std::mt19937 random(2);
  for (int round = 0; round < 10; ++round) {
    const Scratch fresh;
    healthy_host().save(fresh.path());
    for (const fs::path& file : files_below(fresh.path())) {
      std::ifstream stream(file, std::ios::binary);
      std::string text{std::istreambuf_iterator<char>(stream), {}};
      if (random() % 2 == 0) text = text.substr(0, random() % (text.size() + 1));
      if (random() % 3 == 0) text += text;
      std::ofstream(file, std::ios::binary) << text;
    }
    absl::StatusOr<Tree> tree = Tree::open(fresh.path());
    ASSERT_TRUE(tree.ok());
    System system(*std::move(tree));
    to_json(examine(system, {}));
  }
}

TEST_F(HostileTrees, Emptiness) {
  spoil_all([](const fs::path& file) { std::ofstream(file, std::ios::trunc); });
  examine_it();
  fs::remove_all(scratch_.path());
  fs::create_directories(scratch_.path());
  examine_it();
}

TEST_F(HostileTrees, FoldersInPlaceOfFiles) {
  spoil_all([](const fs::path& file) {
    fs::remove(file);
    fs::create_directory(file);
  });
  examine_it();
}

TEST_F(HostileTrees, FilesInPlaceOfFolders) {
  for (const char* folder : {"/sys/class/infiniband", "/sys/bus/pci/devices", "/proc/self", "/observed"}) {
    fs::remove_all(scratch_.path() + folder);
    std::ofstream(scratch_.path() + folder) << "no folder\n";
  }
  examine_it();
}

TEST_F(HostileTrees, LinksWithoutAnEnd) {
  spoil_all([](const fs::path& file) {
    fs::remove(file);
    fs::create_symlink(file.filename(), file);
  });
  fs::create_symlink("..", scratch_.path() + "/sys/class/infiniband/loop");
  fs::create_symlink("b", scratch_.path() + "/a");
  fs::create_symlink("a", scratch_.path() + "/b");
  examine_it();
}

TEST_F(HostileTrees, PipesWithoutAWriter) {
  spoil_all([](const fs::path& file) {
    fs::remove(file);
    ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  });
  examine_it();
}

TEST_F(HostileTrees, HugeFiles) {
  spoil_all([](const fs::path& file) { fs::resize_file(file, uintmax_t{1} << 40); });
  examine_it();
}

TEST_F(HostileTrees, ManyEntries) {
  const std::string folder = scratch_.path() + "/sys/class/infiniband/mlx5_0/ports";
  for (int i = 0; i < 1000; ++i) fs::create_directory(fmt::format("{}/{}", folder, i + 100));
  examine_it();
}

TEST_F(HostileTrees, UnreadableFiles) {
  spoil_all([](const fs::path& file) { chmod(file.c_str(), 0); });
  chmod((scratch_.path() + "/sys/class/infiniband").c_str(), 0);
  examine_it();
  chmod((scratch_.path() + "/sys/class/infiniband").c_str(), 0755);
}

TEST_F(HostileTrees, NamesThatSpeakToTerminals) {
  fs::create_directories(scratch_.path() + "/sys/class/infiniband/\033[2Jmlx5\n/ports/\033]0;1");
  fs::create_directories(scratch_.path() + "/sys/class/infiniband_verbs/\033[31m");
  std::ofstream(scratch_.path() + "/proc/sys/kernel/osrelease") << "6.1\033[2J\xff\xfe\n";
  EXPECT_EQ(examine_it().find('\033'), std::string::npos);
}

TEST_F(HostileTrees, ACapabilityListThatNeverEnds) {
  std::string config = config_space(0);
  for (const size_t at : {0x100u, 0x148u}) {  // each names the other as the next
    const uint32_t header = (at == 0x100 ? 0x148u : 0x100u) << 20 | 0x00010001;
    for (size_t i = 0; i < 4; ++i) config[at + i] = static_cast<char>(header >> (8 * i) & 0xff);
  }
  for (const fs::path& file : files_below(scratch_.path()))
    if (file.filename() == "config") std::ofstream(file, std::ios::binary) << config;
  examine_it();
}

}  // namespace
}  // namespace gradrail::tools::doctor
