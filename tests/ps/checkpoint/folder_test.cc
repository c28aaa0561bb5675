#include "ps/checkpoint/folder.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <set>
#include <sstream>
#include <thread>

#include "base/file.h"
#include "base/status.h"
#include "ps/checkpoint/retention.h"
#include "ps/checkpoint/set.h"
#include "tests/base/captured_log.h"
#include "tests/ps/checkpoint/checkpoint_files.h"

namespace {

/// While true, no file gets the name of a folder's identity, as on a file system that fails.
std::atomic<bool> identity_fails = false;

bool fails(const char* to) { return identity_fails && std::string_view(to).ends_with("/gradrail-folder"); }

}  // namespace

// These functions replace those of libc in this program.
extern "C" int link(const char* from, const char* to) noexcept {
  if (!fails(to)) return linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
  errno = EPERM;
  return -1;
}

extern "C" int rename(const char* from, const char* to) noexcept {
  if (!fails(to)) return renameat(AT_FDCWD, from, AT_FDCWD, to);
  errno = EIO;
  return -1;
}

namespace gradrail::ps {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string words(const absl::Status& status) { return std::string(message_of(status)); }

/// A set of `shard_count` files of which those in `missing` are not there.
Checkpoint write_set(const TemporaryFolder& folder, uint64_t step, uint32_t shard_count,
                     const std::set<uint32_t>& missing = {}) {
  constexpr uint64_t kElements = 100;
  const ShardMap map = ShardMap::cut(kElements, shard_count, 256).value();
  Checkpoint last;
  for (uint32_t i = 0; i < shard_count; ++i) {
    last = make_checkpoint(OptimizerKind::sgd, map.shard(i), kElements, i);
    last.header.global_step = step;
    last.header.shard_index = i;
    last.header.shard_count = shard_count;
    if (missing.contains(i)) continue;
    const std::string path = folder.file(checkpoint_file_name(step, 0, i, shard_count));
    EXPECT_TRUE(write_checkpoint(path, view(last)).ok());
  }
  return last;
}

TEST(CheckpointFolder, TasksThatShareItAgreeOnItsIdentity) {
  for (int repetition = 0; repetition < 20; ++repetition) {
    const TemporaryFolder folder;
    std::string identities[8];
    std::vector<std::thread> tasks;
    for (std::string& identity : identities) {
      tasks.emplace_back([&] { identity = prepare_checkpoint_folder(folder.file("below")).value_or("none"); });
    }
    for (std::thread& task : tasks) task.join();
    EXPECT_EQ(identities[0].size(), 32u) << identities[0];
    EXPECT_EQ(std::set<std::string>(std::begin(identities), std::end(identities)).size(), 1u);
    size_t files = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder.file("below"))) ++files;
    EXPECT_EQ(files, 1u) << "what the slower ones wrote is gone";
  }
}

/// The temporary file of the identity stayed in the folder.
TEST(CheckpointFolder, AnIdentityThatCannotBeNamedLeavesNoFile) {
  const TemporaryFolder folder;
  identity_fails = true;
  const absl::Status refused = prepare_checkpoint_folder(folder.path()).status();
  identity_fails = false;
  EXPECT_THAT(words(refused),
              AllOf(HasSubstr("rename to " + folder.file("gradrail-folder")), HasSubstr("Input/output error")));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_TRUE(prepare_checkpoint_folder(folder.path()).ok());
}

TEST(CheckpointFolder, TwoFoldersAreNotOne) {
  const TemporaryFolder folder;
  EXPECT_NE(prepare_checkpoint_folder(folder.file("a")).value(), prepare_checkpoint_folder(folder.file("b")).value());
  EXPECT_EQ(prepare_checkpoint_folder(folder.file("a")).value(), prepare_checkpoint_folder(folder.file("a")).value());
}

TEST(CheckpointFolder, AnEmptyIdentityIsNamed) {
  const TemporaryFolder folder;
  write_bytes(folder.file("gradrail-folder"), "");
  const absl::Status refused = prepare_checkpoint_folder(folder.path()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(words(refused), AllOf(HasSubstr(folder.file("gradrail-folder")), HasSubstr("remove it")));
}

TEST(CheckpointFolder, WithoutSetsNothingIsRestored) {
  const TemporaryFolder folder;
  ASSERT_TRUE(prepare_checkpoint_folder(folder.path()).ok());
  const auto restored = restore_newest(folder.path(), {.schema = {{"w", {1}}}});
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(*restored, nullptr);
}

TEST(CheckpointFolder, TheNewestWholeSetIsRestored) {
  const TemporaryFolder folder;
  const Checkpoint saved = write_set(folder, 100, 2);
  write_set(folder, 50, 1);
  write_set(folder, 200, 3, {1});
  const auto restored = restore_newest(folder.path(), {.schema = saved.header.schema});
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ((*restored)->header.global_step, 100u);
}

TEST(CheckpointFolder, HalfASetIsAnErrorThatNamesTheOtherHalf) {
  const TemporaryFolder folder;
  const Checkpoint saved = write_set(folder, 300, 2, {1});
  const absl::Status refused = restore_newest(folder.path(), {.schema = saved.header.schema}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(words(refused), AllOf(HasSubstr(folder.path()), HasSubstr("step 300 is incomplete"),
                                    HasSubstr("missing 1"), HasSubstr("one shared folder")));
}

/// Returns the log text of `run`.
template <typename Run>
std::string log_of(Run run) {
  const CapturedLog log;
  run();
  return log.text();
}

void damage(const std::string& path) { write_bytes(path, read_bytes(path).substr(0, 200)); }

TEST(CheckpointFolder, ADamagedSetIsNamedAndTheOneBeforeItIsUsed) {
  const TemporaryFolder folder;
  write_set(folder, 100, 1);
  const Checkpoint good = write_set(folder, 200, 1);
  write_set(folder, 300, 2);
  write_set(folder, 400, 1);
  write_set(folder, 500, 2, {0});
  damage(folder.file(checkpoint_file_name(300, 0, 1, 2)));
  damage(folder.file(checkpoint_file_name(400, 0, 0, 1)));
  const std::string log = log_of([&] {
    const auto restored = restore_newest(folder.path(), {.schema = good.header.schema});
    ASSERT_TRUE(restored.ok()) << restored.status();
    EXPECT_EQ((*restored)->header.global_step, 200u);
    EXPECT_EQ((*restored)->parameters, good.parameters);
  });
  EXPECT_THAT(log,
              AllOf(HasSubstr("step 500 is incomplete: of 2 shards 1 are there, missing 0: going back to step 200"),
                    HasSubstr(checkpoint_file_name(400, 0, 0, 1) + ": truncated"),
                    HasSubstr(checkpoint_file_name(300, 0, 1, 2) + ": truncated")));
}

TEST(CheckpointFolder, NothingWholeIsAnErrorAboutTheNewest) {
  const TemporaryFolder folder;
  const Checkpoint saved = write_set(folder, 300, 1);
  const auto restore = [&] { return restore_newest(folder.path(), {.schema = saved.header.schema}).status(); };
  const std::string newest = folder.file(checkpoint_file_name(300, 0, 0, 1));
  damage(newest);
  EXPECT_TRUE(absl::IsDataLoss(restore())) << restore();
  EXPECT_THAT(words(restore()), AllOf(HasSubstr(newest), HasSubstr("no older one; use another folder for a new run")));
  for (const uint64_t step : {100, 200}) {
    write_set(folder, step, 1);
    damage(folder.file(checkpoint_file_name(step, 0, 0, 1)));
  }
  EXPECT_TRUE(absl::IsDataLoss(restore())) << restore();
  EXPECT_THAT(words(restore()), AllOf(HasSubstr(newest), HasSubstr("the 2 older ones are damaged too")));
}

TEST(CheckpointFolder, TheSetThatAnotherTaskNamedIsRestoredAndNoOther) {
  const TemporaryFolder folder;
  const Checkpoint saved = write_set(folder, 300, 2);
  write_set(folder, 400, 1);
  write_set(folder, 500, 2, {1});
  const auto restore = [&](const SavedSet& set) {
    return restore_set(folder.path(), set, {.schema = saved.header.schema});
  };
  ASSERT_TRUE(restore({300, 0}).ok()) << restore({300, 0}).status();
  EXPECT_EQ((*restore({300, 0}))->header.global_step, 300u);
  EXPECT_THAT(words(restore({300, 1}).status()), HasSubstr("step 300 is missing"));
  EXPECT_THAT(words(restore({500, 0}).status()), HasSubstr("step 500 is incomplete"));
  damage(folder.file(checkpoint_file_name(300, 0, 1, 2)));
  EXPECT_TRUE(absl::IsDataLoss(restore({300, 0}).status())) << restore({300, 0}).status();
}

void write_set_of_run(const TemporaryFolder& folder, uint64_t step, uint64_t run) {
  Checkpoint checkpoint = make_checkpoint(OptimizerKind::sgd, {0, 5}, 5, step);
  checkpoint.header.global_step = step;
  checkpoint.header.run = run;
  ASSERT_TRUE(write_checkpoint(folder.file(checkpoint_file_name(step, 0, 0, 1)), view(checkpoint)).ok());
}

/// A server that returned with another run's newer set continued that run.
TEST(CheckpointFolder, ARunRestoresItsOwnSetsOnly) {
  const TemporaryFolder folder;
  const Schema schema = make_checkpoint(OptimizerKind::sgd, {0, 5}, 5, 1).header.schema;
  write_set_of_run(folder, 100, 7);
  write_set_of_run(folder, 300, 8);
  const auto step = [&](uint64_t run) {
    const auto restored = restore_newest(folder.path(), {.schema = schema, .run = run});
    EXPECT_TRUE(restored.ok()) << restored.status();
    return restored.ok() ? (*restored)->header.global_step : 0;
  };
  EXPECT_EQ(step(0), 300u) << "a new run continues the newest";
  const std::string log = log_of([&] { EXPECT_EQ(step(7), 100u); });
  EXPECT_THAT(log, HasSubstr("step 300 is of another run: going back to step 100"));
  const absl::Status none = restore_newest(folder.path(), {.schema = schema, .run = 9}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(none)) << none;
  EXPECT_THAT(words(none), HasSubstr("no complete set is of this run, 2 are of other runs"));
  const absl::Status named = restore_set(folder.path(), {300, 0}, {.schema = schema, .run = 7}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(named)) << named;
  EXPECT_THAT(words(named), HasSubstr("at step 300 is of another run"));
  write_set_of_run(folder, 400, 0);
  EXPECT_EQ(step(7), 400u) << "a set without a number fits each run";
}

TEST(CheckpointFolder, OtherModelOrOptimizerIsRefused) {
  const TemporaryFolder folder;
  const Checkpoint saved = write_set(folder, 300, 1);
  EXPECT_THAT(words(restore_newest(folder.path(), {.schema = {{"w", {1}}}}).status()),
              AllOf(HasSubstr("is of another model"), HasSubstr("use another checkpoint folder, or the model")));
  // A file of another program has its own order.
  Schema reordered = saved.header.schema;
  std::reverse(reordered.begin(), reordered.end());
  EXPECT_THAT(words(restore_newest(folder.path(), {.schema = reordered}).status()),
              HasSubstr("has the tensors of this model in another order: tensor 0: "));
  EXPECT_THAT(
      words(restore_newest(folder.path(), {.schema = saved.header.schema, .optimizer = OptimizerKind::adam}).status()),
      HasSubstr("was trained with optimizer sgd, this run uses adam; use optimizer sgd, or another checkpoint folder"));
}

struct Unreadable {
  const char* name;
  void (*make)(const std::string& path);
  const char* says;
};

class CheckpointEntry : public ::testing::TestWithParam<Unreadable> {
 protected:
  void expect_named(const absl::Status& status, const std::string& path) const {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(words(status),
                AllOf(HasSubstr("checkpoint " + path), HasSubstr(GetParam().says), HasSubstr("or remove it")));
  }
};

/// Each began a new run at step 0, without a line: only regular files counted.
TEST_P(CheckpointEntry, ThatCannotBeReadIsAnError) {
  const TemporaryFolder folder;
  const std::string newest = folder.file(checkpoint_file_name(300, 0, 0, 1));
  GetParam().make(newest);
  const auto check = [&] {
    expect_named(restore_newest(folder.path(), {.schema = {{"w", {1}}}}).status(), newest);
    expect_named(read_newest_set(folder.path()).status(), newest);
    expect_named(newest_checkpoint(folder.path()).status(), newest);
    expect_named(restore_set(folder.path(), {300, 0}, {.schema = {{"w", {1}}}}).status(), newest);
    expect_named(read_checkpoint_set(folder.path(), 300).status(), newest);
  };
  check();
  write_set(folder, 200, 1);
  check();  // the older set would discard the steps of the newest one
}

TEST_P(CheckpointEntry, OfOneShardIsAnError) {
  for (const std::set<uint32_t>& missing : {std::set<uint32_t>{1}, std::set<uint32_t>{0, 1}}) {
    const TemporaryFolder folder;
    const Checkpoint saved = write_set(folder, 300, 2, missing);
    const std::string second = folder.file(checkpoint_file_name(300, 0, 1, 2));
    GetParam().make(second);
    expect_named(restore_newest(folder.path(), {.schema = saved.header.schema}).status(), second);
    expect_named(restore_set(folder.path(), {300, 0}, {.schema = saved.header.schema}).status(), second);
  }
}

TEST_P(CheckpointEntry, OfAnOlderSetPreventsNothing) {
  const TemporaryFolder folder;
  const Checkpoint saved = write_set(folder, 300, 1);
  const std::string older = folder.file(checkpoint_file_name(200, 0, 0, 1));
  GetParam().make(older);
  const auto restored = restore_newest(folder.path(), {.schema = saved.header.schema});
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ((*restored)->header.global_step, 300u);
  // Its storage may return.
  ASSERT_TRUE(remove_older_sets(folder.path(), {300, 0}, 1).ok());
  EXPECT_TRUE(std::filesystem::exists(std::filesystem::symlink_status(older)));
}

/// A crash leaves the temporary file of a save.
TEST_P(CheckpointEntry, UnderATemporaryNameIsNoCheckpoint) {
  const TemporaryFolder folder;
  GetParam().make(folder.file(checkpoint_file_name(300, 0, 0, 1) + ".tmp"));
  const auto restored = restore_newest(folder.path(), {.schema = {{"w", {1}}}});
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(*restored, nullptr);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, CheckpointEntry,
    ::testing::Values(
        Unreadable{"link_to_nothing",
                   [](const std::string& path) { std::filesystem::create_symlink("/not/mounted/x.ckpt", path); },
                   "is a symbolic link to /not/mounted/x.ckpt, which is not there (is its storage mounted?)"},
        Unreadable{"link_to_itself", [](const std::string& path) { std::filesystem::create_symlink(path, path); },
                   "Too many levels of symbolic links"},
        Unreadable{"link_to_a_folder", [](const std::string& path) { std::filesystem::create_symlink("/tmp", path); },
                   "is a folder, not a regular file"},
        Unreadable{"folder", [](const std::string& path) { std::filesystem::create_directory(path); },
                   "is a folder, not a regular file"},
        Unreadable{"pipe", [](const std::string& path) { ASSERT_EQ(mkfifo(path.c_str(), 0600), 0); },
                   "is a pipe (FIFO), not a regular file"},
        Unreadable{"device", [](const std::string& path) { std::filesystem::create_symlink("/dev/zero", path); },
                   "is a device, not a regular file"}),
    [](const auto& tested) { return std::string(tested.param.name); });

TEST(CheckpointFolder, ThatIsALinkToNothingIsNamed) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink("/not/mounted", folder.file("link"));
  for (const absl::Status& status :
       {prepare_checkpoint_folder(folder.file("link")).status(), newest_checkpoint(folder.file("link")).status()}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(words(status), AllOf(HasSubstr("checkpoint folder " + folder.file("link")),
                                     HasSubstr("a symbolic link to /not/mounted, which is not there")));
  }
}

/// A pipe hung the task, and a device was read for ever.
TEST(CheckpointFolder, AnIdentityThatIsNoFileIsNamed) {
  for (const bool is_pipe : {false, true}) {
    const TemporaryFolder folder;
    const std::string path = folder.file("gradrail-folder");
    if (is_pipe) {
      ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    } else {
      std::filesystem::create_symlink("/dev/zero", path);
    }
    const absl::Status refused = prepare_checkpoint_folder(folder.path()).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(words(refused), AllOf(HasSubstr(path), HasSubstr(is_pipe ? "is a pipe" : "is a device"),
                                      HasSubstr("remove it, the next start writes it again")));
  }
}

TEST(CheckpointFile, ATemporaryNameInUseIsReplacedAndNotFollowed) {
  const TemporaryFolder folder;
  const std::string path = folder.file(checkpoint_file_name(300, 0, 0, 1));
  write_bytes(folder.file("precious"), "text");
  for (const bool is_pipe : {false, true}) {
    if (is_pipe) {
      ASSERT_EQ(mkfifo((path + ".tmp").c_str(), 0600), 0);
    } else {
      std::filesystem::create_symlink(folder.file("precious"), path + ".tmp");
    }
    write_set(folder, 300, 1);
    EXPECT_EQ(newest_checkpoint(folder.path()).value_or(0), 300u);
    EXPECT_EQ(read_bytes(folder.file("precious")), "text");
  }
}

/// rename() replaced the device, and of a folder the error came after the work.
TEST(CheckpointFile, ReplacesOnlyAFile) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.file("folder"));
  ASSERT_EQ(mkfifo(folder.file("pipe").c_str(), 0600), 0);
  for (const char* const name : {"folder", "pipe"}) {
    const absl::Status refused = ReplacementFile::create(folder.file(name), "timeline").status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(words(refused), HasSubstr("timeline " + folder.file(name) + ": is a "));
  }
}

}  // namespace
}  // namespace gradrail::ps
