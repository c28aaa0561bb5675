// The entry point for transports in shared objects: the loaded ones, and the refused ones with their messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/status.h"
#include "transport/plugin_loader.h"
#include "transport/registry.h"

namespace gradrail::transport {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

namespace fs = std::filesystem;

/// A folder of plug-ins for one test; only its owner may write to it.
class PluginEntryPoint : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "gradrail-plugins-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  /// Loaded plug-ins stay: each test takes names of its own.
  void put(const std::string& built, const std::string& as) {
    fs::copy_file(fs::path(GRADRAIL_TEST_PLUGINS) / ("libgradrail_transport_" + built + ".so"), file(as));
  }
  std::string file(const std::string& name) const { return folder_ + "/libgradrail_transport_" + name + ".so"; }
  std::string why_not(const std::string& name) {
    const absl::StatusOr<const Plugin*> loaded = load_plugin(name);
    EXPECT_FALSE(loaded.ok());
    return std::string(message_of(loaded.status()));
  }

  std::string folder_;
};

TEST_F(PluginEntryPoint, LoadsAndOpens) {
  put("example", "good");
  ASSERT_TRUE(set_plugin_dir(folder_).ok());
  EXPECT_THAT(plugin_names(), Contains("good"));
  const absl::StatusOr<const Plugin*> loaded = load_plugin("good");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_STREQ((*loaded)->library, "an example over tcp");
  const absl::StatusOr<std::unique_ptr<Context>> context = (*loaded)->open({});
  ASSERT_TRUE(context.ok()) << context.status();
  EXPECT_EQ((*context)->name(), "example");
  EXPECT_TRUE((*context)->listen("127.0.0.1:0").ok());
  EXPECT_EQ(load_plugin("good").value(), *loaded);
}

TEST_F(PluginEntryPoint, MissingOneNamesTheFolders) {
  ASSERT_TRUE(set_plugin_dir(folder_).ok());
  EXPECT_THAT(why_not("absent"), AllOf(HasSubstr("libgradrail_transport_absent.so not found in"), HasSubstr(folder_)));
}

TEST_F(PluginEntryPoint, AnotherVersion) {
  put("broken1", "versioned");
  ASSERT_TRUE(set_plugin_dir(folder_).ok());
  const auto says = [](const char* owner, uint32_t version) { return HasSubstr(owner + std::to_string(version)); };
  EXPECT_THAT(why_not("versioned"),
              AllOf(HasSubstr(file("versioned")), says("speaks plug-in version ", kPluginVersion + 1),
                    says("this program ", kPluginVersion), HasSubstr("rebuild it")));
}

TEST_F(PluginEntryPoint, AnotherBuild) {
  put("broken2", "foreign");
  ASSERT_TRUE(set_plugin_dir(folder_).ok());
  EXPECT_THAT(why_not("foreign"), AllOf(HasSubstr("another compiler"), HasSubstr(kPluginBuild)));
}

TEST_F(PluginEntryPoint, OneThatOffersNothing) {
  put("broken3", "empty");
  ASSERT_TRUE(set_plugin_dir(folder_).ok());
  EXPECT_THAT(why_not("empty"), HasSubstr("offers nothing"));
}

TEST_F(PluginEntryPoint, SharedObjectThatIsNone) {
  put("broken4", "none");
  ASSERT_TRUE(set_plugin_dir(folder_).ok());
  EXPECT_THAT(why_not("none"), HasSubstr("is not a transport plug-in"));
}

TEST_F(PluginEntryPoint, FileThatIsNoObject) {
  std::ofstream(file("text")) << "not an ELF file";
  ASSERT_TRUE(set_plugin_dir(folder_).ok());
  EXPECT_THAT(why_not("text"), HasSubstr(file("text")));
}

TEST_F(PluginEntryPoint, FolderMustBeAbsoluteAndThere) {
  EXPECT_THAT(std::string(message_of(set_plugin_dir("plugins"))), HasSubstr("absolute"));
  EXPECT_THAT(std::string(message_of(set_plugin_dir(folder_ + "/nowhere"))), HasSubstr("no such folder"));
}

TEST_F(PluginEntryPoint, FolderOthersMayWriteToIsRefused) {
  ASSERT_EQ(chmod(folder_.c_str(), 0777), 0);
  const absl::Status refused = set_plugin_dir(folder_);
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_THAT(std::string(message_of(refused)), AllOf(HasSubstr("may be written by others"), HasSubstr("chmod go-w")));
}

TEST_F(PluginEntryPoint, FileOthersMayWriteToIsRefused) {
  put("example", "open");
  ASSERT_EQ(chmod(file("open").c_str(), 0666), 0);
  ASSERT_TRUE(set_plugin_dir(folder_).ok());
  EXPECT_THAT(why_not("open"), HasSubstr("may be written by others"));
}

TEST(Registry, HasTheRdmaTransportsWithOrWithoutPlugins) {
  for (const char* name : {"ucx", "ofi"}) {
    const absl::StatusOr<const Transport*> found = find_transport(name);
    ASSERT_TRUE(found.ok()) << name;
    EXPECT_TRUE((*found)->plugin);
  }
}

TEST(Registry, WithoutADeviceRdmaAloneIsRefusedBeforeAnythingIsLoaded) {
  if (!fs::exists("/sys/class/infiniband") || fs::is_empty("/sys/class/infiniband")) {
    const absl::Status refused = find_transport("ucx").value()->open({.rdma_only = true}).status();
    EXPECT_THAT(std::string(message_of(refused)), HasSubstr("no RDMA device on this host"));
  } else {
    GTEST_SKIP() << "this host has an RDMA device";
  }
}

}  // namespace
}  // namespace gradrail::transport
