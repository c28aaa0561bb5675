#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "base/read_file.h"
#include "base/status.h"
#include "fmt/format.h"
#include "worker/data/dataset.h"

namespace gradrail::worker {
namespace {

namespace fs = std::filesystem;

constexpr uint8_t kDigits = 10;
// MNIST's own division: 5,000 of 60,000.
constexpr size_t kValidationShare = 12;

constexpr const char* kImages = "idx3-ubyte";
constexpr const char* kLabels = "idx1-ubyte";

/// The file `stem`-`kind`. Some copies of MNIST have a dot before the kind.
absl::StatusOr<std::string> find_file(const std::string& folder, const std::string& stem, const std::string& kind) {
  std::error_code error;
  for (const char* const join : {"-", "."}) {
    for (const char* const packed : {"", ".gz"}) {
      const std::string path = folder + "/" + stem + join + kind + packed;
      if (fs::exists(path, error)) return path;
    }
  }
  fs::directory_iterator entries(folder, error);
  if (error) return absl::NotFoundError(fmt::format("{}: {}", folder, error.message()));
  return absl::NotFoundError(fmt::format("{0} has no {1}-{2}[.gz], and no {1}.{2}[.gz]", folder, stem, kind));
}

bool holds_mnist(const std::string& folder) { return find_file(folder, "train-images", kImages).ok(); }

absl::StatusOr<Split> read_split(const std::string& folder, const std::string& prefix) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::string images_path, find_file(folder, prefix + "-images", kImages));
  GRADRAIL_ASSIGN_OR_RETURN(const std::string labels_path, find_file(folder, prefix + "-labels", kLabels));
  GRADRAIL_ASSIGN_OR_RETURN(IdxArray labels, read_idx(labels_path));
  GRADRAIL_ASSIGN_OR_RETURN(IdxArray images, read_idx(images_path));

  const auto contradiction = [&](const std::string& what) {
    return absl::DataLossError(fmt::format("{} and {}: {}", images_path, labels_path, what));
  };
  if (labels.shape.size() != 1 || images.shape.size() < 2) {
    return contradiction(
        fmt::format("{} and {} dimensions, expected 3 and 1", images.shape.size(), labels.shape.size()));
  }
  if (images.shape[0] != labels.shape[0]) {
    return contradiction(fmt::format("{} images, {} labels", images.shape[0], labels.shape[0]));
  }
  // The division below needs at least one image.
  if (images.values.empty()) return contradiction("no pixels");
  const auto wrong =
      std::find_if(labels.values.begin(), labels.values.end(), [](uint8_t label) { return label >= kDigits; });
  if (wrong != labels.values.end()) {
    return contradiction(fmt::format("label {} at example {}, expected 0 to 9", *wrong, wrong - labels.values.begin()));
  }
  const size_t count = labels.values.size();
  return Split{.count = count,
               .pixels = images.values.size() / count,
               .images = std::move(images.values),
               .labels = std::move(labels.values)};
}

/// Moves the first `count` examples out of `split`.
Split take_front(Split& split, size_t count) {
  const auto images_end = split.images.begin() + static_cast<std::ptrdiff_t>(count * split.pixels);
  const auto labels_end = split.labels.begin() + static_cast<std::ptrdiff_t>(count);
  Split front{.count = count,
              .pixels = split.pixels,
              .images = {split.images.begin(), images_end},
              .labels = {split.labels.begin(), labels_end}};
  split.images.erase(split.images.begin(), images_end);
  split.labels.erase(split.labels.begin(), labels_end);
  split.count -= count;
  return front;
}

}  // namespace

absl::StatusOr<MnistData> load_mnist(const std::string& folder) {
  GRADRAIL_ASSIGN_OR_RETURN(Split train, read_split(folder, "train"));
  GRADRAIL_ASSIGN_OR_RETURN(Split test, read_split(folder, "t10k"));
  if (train.pixels != test.pixels) {
    return absl::DataLossError(
        fmt::format("{0}/train-images-idx3-ubyte and {0}/t10k-images-idx3-ubyte: {1} and {2} "
                    "pixels an image",
                    folder, train.pixels, test.pixels));
  }
  MnistData data;
  // The front, as the MNIST reader of TensorFlow's tutorials does.
  data.validation = take_front(train, train.count / kValidationShare);
  data.train = std::move(train);
  data.test = std::move(test);
  return data;
}

absl::StatusOr<std::string> default_mnist_folder() {
  // A named folder is used alone: falling back to another would train on the wrong data.
  if (const char* named = std::getenv("GRADRAIL_DATA_DIR"); named != nullptr && *named != '\0') {
    const absl::Status found = find_file(named, "train-images", kImages).status();
    if (found.ok()) return named;
    return absl::NotFoundError(fmt::format("GRADRAIL_DATA_DIR: {}", message_of(found)));
  }
  const fs::path program = program_folder();
  if (program.empty())
    return absl::NotFoundError(
        "no MNIST: /proc/self/exe does not name the folder of this program (is /proc mounted?); "
        "name the folder of MNIST by --data-dir or GRADRAIL_DATA_DIR");
  // The folders are beside the program, or in an installation or a build tree.
  const std::string candidates[] = {(program / "mnist").string(),
                                    (program.parent_path() / "share/gradrail/mnist").string()};
  for (const std::string& folder : candidates) {
    if (holds_mnist(folder)) return folder;
  }
  return absl::NotFoundError(fmt::format("no MNIST in {} or {} (name its folder by --data-dir or GRADRAIL_DATA_DIR)",
                                         candidates[0], candidates[1]));
}

}  // namespace gradrail::worker
