#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <numeric>

#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/idx_files.h"
#include "worker/data/dataset.h"

namespace gradrail::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A little set in MNIST's form: `pixels`² pixels an image, label i % 10, pixel value i % 251.
void write_split(const TemporaryFolder& folder, const std::string& prefix, uint32_t images, uint32_t labels,
                 uint32_t pixels = 3, uint8_t first_label = 0) {
  Bytes image_values;
  Bytes label_values;
  for (uint32_t i = 0; i < images; ++i) image_values.insert(image_values.end(), pixels * pixels, i % 251);
  for (uint32_t i = 0; i < labels; ++i) label_values.push_back(static_cast<uint8_t>(i % 10));
  if (labels > 0) label_values[0] = first_label;
  folder.write(prefix + "-images-idx3-ubyte", idx_bytes({images, pixels, pixels}, image_values));
  folder.write(prefix + "-labels-idx1-ubyte.gz", gzip_bytes(idx_bytes({labels}, label_values)));
}

void expect_contradiction(const TemporaryFolder& folder, const std::string& why) {
  const absl::Status status = load_mnist(folder.path()).status();
  ASSERT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  EXPECT_THAT(std::string(status.message()), HasSubstr("-images-idx3-ubyte"));
}

/// Sets a variable for one test and puts back what was there.
class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    setenv(name, value.c_str(), 1);
  }
  ~Environment() { old_.empty() ? unsetenv(name_) : setenv(name_, old_.c_str(), 1); }

 private:
  const char* name_;
  std::string old_;
};

std::vector<size_t> label_counts(const Bytes& labels) {
  std::vector<size_t> counts(10);
  for (const uint8_t label : labels) ++counts[label];
  return counts;
}

TEST(DatasetMnist, SmallSetSplitsItsFirstTwelfthOff) {
  const TemporaryFolder folder;
  write_split(folder, "train", 36, 36);
  write_split(folder, "t10k", 7, 7);
  const absl::StatusOr<MnistData> data = load_mnist(folder.path());
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->validation.count, 3u);
  EXPECT_EQ(data->train.count, 33u);
  EXPECT_EQ(data->test.count, 7u);
  EXPECT_EQ(data->train.pixels, 9u);
  EXPECT_THAT(data->validation.labels, ElementsAre(0, 1, 2));
  ASSERT_EQ(data->train.images.size(), 33u * 9u);
  EXPECT_EQ(data->train.images.front(), 3);
  EXPECT_EQ(data->train.images.back(), 35);
  EXPECT_EQ(data->train.labels.front(), 3);
}

/// Copies of MNIST have a dot before "idx".
TEST(DatasetMnist, DottedNamesAreAccepted) {
  namespace fs = std::filesystem;
  const TemporaryFolder folder;
  write_split(folder, "train", 36, 36);
  write_split(folder, "t10k", 7, 7);
  const std::string at = folder.path() + "/";
  for (const std::string split : {"train", "t10k"}) {
    fs::rename(at + split + "-images-idx3-ubyte", at + split + "-images.idx3-ubyte");
    fs::rename(at + split + "-labels-idx1-ubyte.gz", at + split + "-labels.idx1-ubyte.gz");
    const absl::StatusOr<MnistData> data = load_mnist(folder.path());
    ASSERT_TRUE(data.ok()) << data.status();
    EXPECT_EQ(data->train.count, 33u);
  }
  const Environment named("GRADRAIL_DATA_DIR", folder.path());
  EXPECT_EQ(default_mnist_folder().value_or(""), folder.path());
}

TEST(DatasetMnist, MissingFileIsNotFoundAndTheNamesAreListed) {
  const TemporaryFolder folder;
  write_split(folder, "train", 36, 36);
  const absl::Status status = load_mnist(folder.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(std::string(status.message()),
            folder.path() + " has no t10k-images-idx3-ubyte[.gz], and no t10k-images.idx3-ubyte[.gz]");
  const absl::Status nowhere = load_mnist("/nowhere").status();
  EXPECT_EQ(nowhere.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(std::string(nowhere.message()), "/nowhere: No such file or directory");
}

TEST(DatasetMnist, CountsThatDifferAreAContradiction) {
  const TemporaryFolder folder;
  write_split(folder, "train", 36, 35);
  write_split(folder, "t10k", 7, 7);
  expect_contradiction(folder, "36 images, 35 labels");
}

TEST(DatasetMnist, LabelsBeyondNineAreAContradiction) {
  const TemporaryFolder folder;
  write_split(folder, "train", 36, 36, 3, 10);
  write_split(folder, "t10k", 7, 7);
  expect_contradiction(folder, "label 10 at example 0");
}

TEST(DatasetMnist, ImageSizesThatDifferAreAContradiction) {
  const TemporaryFolder folder;
  write_split(folder, "train", 36, 36, 3);
  write_split(folder, "t10k", 7, 7, 4);
  expect_contradiction(folder, "9 and 16 pixels");
}

TEST(DatasetMnist, SwappedFilesAreAContradiction) {
  const TemporaryFolder folder;
  write_split(folder, "train", 36, 36);
  write_split(folder, "t10k", 7, 7);
  std::filesystem::remove(folder.path() + "/t10k-labels-idx1-ubyte.gz");
  std::filesystem::copy_file(folder.path() + "/t10k-images-idx3-ubyte", folder.path() + "/t10k-labels-idx1-ubyte");
  expect_contradiction(folder, "dimensions");
}

TEST(DatasetMnist, EmptySetIsAnError) {
  const TemporaryFolder folder;
  write_split(folder, "train", 0, 0);
  write_split(folder, "t10k", 7, 7);
  expect_contradiction(folder, "no pixels");
}

TEST(DatasetMnist, NamedFolderIsTheOnlyOneTaken) {
  const TemporaryFolder folder;
  const Environment variable("GRADRAIL_DATA_DIR", folder.path());
  const absl::Status status = default_mnist_folder().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr(folder.path()));
  write_split(folder, "train", 36, 36);
  const absl::StatusOr<std::string> found = default_mnist_folder();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(*found, folder.path());
}

TEST(DatasetMnist, BuiltInSetIsThePublishedOne) {
  const Environment variable("GRADRAIL_DATA_DIR", "");
  const absl::StatusOr<std::string> folder = default_mnist_folder();
  ASSERT_TRUE(folder.ok()) << folder.status();
  const TimePoint start = Clock::now();
  const absl::StatusOr<MnistData> data = load_mnist(*folder);
  RecordProperty("load_ms", static_cast<int>(1e3 * seconds_since(start)));
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->train.count, 55000u);
  EXPECT_EQ(data->validation.count, 5000u);
  EXPECT_EQ(data->test.count, 10000u);
  EXPECT_EQ(data->train.pixels, 784u);
  EXPECT_THAT(label_counts(data->test.labels), ElementsAre(980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009));
  EXPECT_THAT(Bytes(data->validation.labels.begin(), data->validation.labels.begin() + 10),
              ElementsAre(5, 0, 4, 1, 9, 2, 1, 3, 1, 4));
  std::vector<size_t> all = label_counts(data->train.labels);
  const std::vector<size_t> validation = label_counts(data->validation.labels);
  for (size_t digit = 0; digit < 10; ++digit) all[digit] += validation[digit];
  EXPECT_THAT(all, ElementsAre(5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949));
  const double sum = std::accumulate(data->test.images.begin(), data->test.images.end(), 0.0);
  EXPECT_NEAR(sum / (255.0 * static_cast<double>(data->test.images.size())), 0.13251, 0.00001);
}

TEST(DatasetMnist, FashionMnistLoadsAsIs) {
  const std::string folder = "/usr/share/datasets/fashion-mnist";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is absent (package dataset-fashion-mnist)";
  const absl::StatusOr<MnistData> data = load_mnist(folder);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->train.count, 55000u);
  EXPECT_THAT(label_counts(data->test.labels), ::testing::Each(1000u));
}

}  // namespace
}  // namespace gradrail::worker
