// Transports in shared objects: the loaded ones, and the refused ones with their messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/status.h"
#include "gradrail/transport.h"
#include "tests/base/captured_log.h"
#include "transport/builtin_plugin.h"
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
  EXPECT_EQ((*loaded)->library, "an example in C over sockets");
  const absl::StatusOr<std::unique_ptr<Context>> context = (*loaded)->open({});
  ASSERT_TRUE(context.ok()) << context.status();
  EXPECT_EQ((*context)->name(), "good") << "a transport has the name of its file";
  EXPECT_TRUE((*context)->listen("127.0.0.1:0").ok());
  EXPECT_EQ(load_plugin("good").value(), *loaded);
}

TEST_F(PluginEntryPoint, MissingOneNamesTheFolders) {
  ASSERT_TRUE(set_plugin_dir(folder_).ok());
  EXPECT_THAT(why_not("absent"), AllOf(HasSubstr("libgradrail_transport_absent.so not found in"), HasSubstr(folder_)));
}

TEST_F(PluginEntryPoint, LaterMajorVersionIsRefused) {
  put("table1", "later_major");
  ASSERT_TRUE(set_plugin_dir(folder_).ok());
  EXPECT_THAT(why_not("later_major"),
              AllOf(HasSubstr(file("later_major")), HasSubstr("version 7 of the plug-in interface"),
                    HasSubstr("supports version 1"), HasSubstr("install a build of the plug-in for version 1")));
}

TEST_F(PluginEntryPoint, TableThatIsTooSmallIsRefused) {
  put("table2", "small");
  ASSERT_TRUE(set_plugin_dir(folder_).ok());
  const std::string bytes = std::to_string(offsetof(gradrail_transport_table, wait_fd));
  EXPECT_THAT(why_not("small"), AllOf(HasSubstr(file("small")), HasSubstr("its table has " + bytes + " bytes"),
                                      HasSubstr("set table_bytes to sizeof(gradrail_transport_table)")));
}

TEST_F(PluginEntryPoint, TableWithoutARequiredFunctionIsRefused) {
  put("table3", "incomplete");
  ASSERT_TRUE(set_plugin_dir(folder_).ok());
  EXPECT_THAT(why_not("incomplete"), AllOf(HasSubstr(file("incomplete")), HasSubstr("has no function put()")));
}

TEST_F(PluginEntryPoint, LaterMinorVersionIsUsed) {
  put("table4", "later_minor");
  ASSERT_TRUE(set_plugin_dir(folder_).ok());
  const absl::StatusOr<const Plugin*> loaded = load_plugin("later_minor");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const absl::Status refused = (*loaded)->open({}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_EQ(message_of(refused), "later_minor: no device of this kind (load its driver)");
}

TEST_F(PluginEntryPoint, SharedObjectThatIsNone) {
  put("table5", "none");
  ASSERT_TRUE(set_plugin_dir(folder_).ok());
  EXPECT_THAT(why_not("none"),
              AllOf(HasSubstr("is not a transport plug-in"), HasSubstr("exports no gradrail_transport_v1")));
}

TEST_F(PluginEntryPoint, BuiltinOfAnotherVersion) {
  put("builtin1", "versioned");
  ASSERT_TRUE(set_plugin_dir(folder_).ok());
  const auto says = [](const char* owner, uint32_t version) { return HasSubstr(owner + std::to_string(version)); };
  EXPECT_THAT(why_not("versioned"), AllOf(HasSubstr(file("versioned")), says("has version ", kBuiltinPluginVersion + 1),
                                          says("this program ", kBuiltinPluginVersion), HasSubstr("of one build")));
}

TEST_F(PluginEntryPoint, BuiltinOfAnotherBuild) {
  put("builtin2", "foreign");
  ASSERT_TRUE(set_plugin_dir(folder_).ok());
  EXPECT_THAT(why_not("foreign"), AllOf(HasSubstr("another compiler"), HasSubstr(kBuiltinPluginBuild)));
}

TEST_F(PluginEntryPoint, BuiltinWritesToTheLogOfTheProgram) {
  put("builtin3", "logging");
  ASSERT_TRUE(set_plugin_dir(folder_).ok());
  const absl::StatusOr<const Plugin*> loaded = load_plugin("logging");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const CapturedLog log;
  EXPECT_TRUE(absl::IsNotFound((*loaded)->open({}).status()));
  EXPECT_EQ(log.text(), "no device of this kind\n");
}

TEST_F(PluginEntryPoint, BuiltinThatOffersNothing) {
  put("builtin4", "empty");
  ASSERT_TRUE(set_plugin_dir(folder_).ok());
  EXPECT_THAT(why_not("empty"), HasSubstr("its entry point returns no plug-in"));
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
  EXPECT_THAT(std::string(message_of(refused)),
              AllOf(HasSubstr("is writable by other users"), HasSubstr("chmod go-w")));
}

TEST_F(PluginEntryPoint, FileOthersMayWriteToIsRefused) {
  put("example", "open");
  ASSERT_EQ(chmod(file("open").c_str(), 0666), 0);
  ASSERT_TRUE(set_plugin_dir(folder_).ok());
  EXPECT_THAT(why_not("open"), HasSubstr("is writable by other users"));
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
