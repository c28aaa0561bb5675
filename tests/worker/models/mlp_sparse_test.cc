#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"
#include "gtest/gtest.h"
#include "tests/worker/models/reference_mlp.h"
#include "worker/data/dataset.h"
#include "worker/models/mlp.h"
#include "worker/models/sparse_product.h"

namespace gradrail::worker {
namespace {

constexpr uint64_t kSeed = 20;
constexpr float kUntouched = -12345.0f;

/// Images of which every third is black, every third has no black pixel, and the others have a fifth of their pixels.
Split mixed_split(size_t count, size_t pixels, uint64_t seed, size_t classes = 10) {
  Random random(seed);
  Split split{.count = count, .pixels = pixels, .images = std::vector<uint8_t>(count * pixels), .labels = {}};
  for (size_t i = 0; i < count; ++i) {
    for (size_t pixel = 0; pixel < pixels; ++pixel) {
      const bool bright = i % 3 == 0 ? random.below(5) == 0 : i % 3 == 1;
      if (bright) split.images[i * pixels + pixel] = static_cast<uint8_t>(1 + random.below(255));
    }
    split.labels.push_back(static_cast<uint8_t>(random.below(classes)));
  }
  return split;
}

std::vector<float> normals(size_t count, uint64_t seed) {
  Random random(seed);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(random.normal());
  return values;
}

/// The same batches in both forms.
struct Loaders {
  Loaders(const Split& split, size_t batch)
      : dense(split, batch, kSeed, 0), sparse(split, batch, kSeed, 0, BatchLoader::Form::kSparse) {}
  BatchLoader dense, sparse;
};

std::vector<float> by_image_as_dense(const SparseBatch& batch, size_t pixels) {
  std::vector<float> images(batch.by_image.size() * pixels);
  for (size_t i = 0; i < batch.by_image.size(); ++i) {
    for (const SparseValue& value : batch.by_image[i]) {
      images[i * pixels + value.row()] = static_cast<float>(value.value()) * (1.0f / 255.0f);
    }
  }
  return images;
}

std::vector<float> by_pixel_as_dense(const SparseBatch& batch) {
  const size_t pixels = batch.by_pixel.size();
  std::vector<float> images(batch.by_image.size() * pixels);
  for (size_t pixel = 0; pixel < pixels; ++pixel) {
    size_t least = 0;
    for (const SparseValue& value : batch.by_pixel[pixel]) {
      EXPECT_GE(value.row(), least) << "pixel " << pixel << ": not in ascending order";
      least = value.row() + 1;
      images[value.row() * pixels + pixel] = static_cast<float>(value.value()) * (1.0f / 255.0f);
    }
  }
  return images;
}

TEST(MlpSparse, LoaderGivesTheSameBatchesInBothForms) {
  for (const auto& [count, pixels, batch] : {std::tuple<size_t, size_t, size_t>{97, 50, 10}, {5, 1, 1}, {9, 784, 9}}) {
    SCOPED_TRACE(::testing::Message() << count << " x " << pixels << " in " << batch);
    const Split split = mixed_split(count, pixels, kSeed);
    Loaders loaders(split, batch);
    for (int i = 0; i < 25; ++i) {
      if (i % 3 == 0) loaders.sparse.prefetch();
      const BatchLoader::Batch dense = loaders.dense.next();
      const SparseBatch sparse = loaders.sparse.next_sparse();
      ASSERT_EQ(dense.labels, sparse.labels);
      ASSERT_EQ(dense.images, by_image_as_dense(sparse, pixels));
      ASSERT_EQ(dense.images, by_pixel_as_dense(sparse));
    }
  }
}

TEST(MlpSparse, PrefetchLeavesTheListsInUseAlone) {
  const Split split = mixed_split(300, 30, kSeed);
  BatchLoader loader(split, 100, kSeed, 0, BatchLoader::Form::kSparse);
  const SparseBatch in_use = loader.next_sparse();
  const std::vector<float> before = by_image_as_dense(in_use, 30);
  loader.prefetch();
  EXPECT_EQ(by_image_as_dense(in_use, 30), before);
  EXPECT_EQ(by_pixel_as_dense(in_use), before);
  EXPECT_NE(by_pixel_as_dense(loader.next_sparse()), before);
}

TEST(MlpSparse, DensityCountsAndLimitsHold) {
  EXPECT_EQ(density({0, 1, 255, 0}), 0.5);
  EXPECT_EQ(density({0, 0}), 0.0);
  EXPECT_TRUE(fits_sparse(65536, 1));
  EXPECT_FALSE(fits_sparse(65537, 1));
  EXPECT_TRUE(fits_sparse(1, 65536));
  EXPECT_FALSE(fits_sparse(1, 65537));
  EXPECT_FALSE(fits_sparse(65536, 65536));
  const SparseValue last(65535, 255);
  EXPECT_EQ(last.row(), 65535u);
  EXPECT_EQ(last.value(), 255u);
}

TEST(MlpSparse, RowsAccumulateAtEveryWidth) {
  constexpr size_t kRows = 20, kFirst = 3, kEnd = 17;
  float scaled[256];
  for (size_t i = 0; i < 256; ++i) scaled[i] = static_cast<float>(i) / 255.0f;
  const std::vector<SparseValue> values = {{3, 1}, {4, 255}, {9, 17}, {16, 200}, {17, 9}, {19, 255}};
  for (size_t width = 1; width <= 330; ++width) {
    SCOPED_TRACE(::testing::Message() << "width " << width);
    const size_t stride = width + width % 3;
    const std::vector<float> matrix = normals(kRows * stride, kSeed);
    const std::vector<float> start = normals(width, kSeed + 1);
    std::vector<float> out(width + 1, kUntouched), in_place = start;
    const Rows rows{.data = matrix.data() + kFirst * stride, .stride = stride, .first_row = kFirst, .end_row = kEnd};
    EXPECT_EQ(accumulate_rows(values, scaled, rows, width, start.data(), out.data()), 4u);
    accumulate_rows(values, scaled, rows, width, in_place.data(), in_place.data());
    for (size_t j = 0; j < width; ++j) {
      double expected = start[j];
      for (size_t k = 0; k < 4; ++k) expected += scaled[values[k].value()] * matrix[values[k].row() * stride + j];
      ASSERT_NEAR(out[j], expected, 1e-5) << "column " << j;
      ASSERT_EQ(in_place[j], out[j]) << "column " << j;
    }
    EXPECT_EQ(out[width], kUntouched);
    EXPECT_EQ(accumulate_rows({}, scaled, rows, width, nullptr, out.data()), 0u);
    for (size_t j = 0; j < width; ++j) ASSERT_EQ(out[j], 0.0f) << "column " << j;
  }
}

/// Parameters and gradients; `spare` elements behind each gradient catch what is written beyond it.
struct Tensorset {
  explicit Tensorset(const Mlp::Shape& shape) {
    for (const std::vector<float>& zero : zero_tensors<float>(shape)) {
      values.push_back(normals(zero.size(), kSeed + 2 + values.size()));
      room.emplace_back(zero.size() + 3, kUntouched);
    }
    for (size_t t = 0; t < values.size(); ++t) {
      parameters.push_back(values[t]);
      gradients.push_back(absl::MakeSpan(room[t]).subspan(0, values[t].size()));
    }
  }
  Tensors<float> values, room;
  std::vector<absl::Span<const float>> parameters;
  std::vector<absl::Span<float>> gradients;
};

void expect_near(absl::Span<const float> actual, absl::Span<const double> expected, size_t tensor) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], 3e-6) << "tensor " << tensor << " element " << i;
  }
}

void expect_both_forms_right(const Mlp::Shape& shape) {
  const Split split = mixed_split(3 * shape.batch, shape.inputs, kSeed, shape.classes);
  Loaders loaders(split, shape.batch);
  absl::StatusOr<std::unique_ptr<Mlp>> mlp = Mlp::create(shape, 1);
  ASSERT_TRUE(mlp.ok()) << mlp.status();
  Tensorset dense(shape), sparse(shape);
  Tensors<double> parameters;
  for (const std::vector<float>& tensor : dense.values) parameters.emplace_back(tensor.begin(), tensor.end());
  for (int i = 0; i < 3; ++i) {
    const BatchLoader::Batch batch = loaders.dense.next();
    Tensors<double> expected = zero_tensors<double>(shape);
    const double cost = reference_step<double>(shape, batch.images, batch.labels, parameters, 1.0, expected);
    std::vector<size_t> order;
    const float sparse_cost = (*mlp)->step(loaders.sparse.next_sparse(), sparse.parameters, sparse.gradients,
                                           [&](size_t tensor) { order.push_back(tensor); });
    const float dense_cost = (*mlp)->step(batch.images, batch.labels, dense.parameters, dense.gradients, nullptr);
    EXPECT_EQ(order, (std::vector<size_t>{1, 3, 0, 2}));
    EXPECT_NEAR(sparse_cost, cost, 1e-5 * (1.0 + cost));
    EXPECT_NEAR(sparse_cost, dense_cost, 1e-5 * (1.0 + cost));
    for (size_t t = 0; t < expected.size(); ++t) {
      expect_near(sparse.gradients[t], expected[t], t);
      expect_near(dense.gradients[t], expected[t], t);
      for (size_t k = 0; k < 3; ++k) EXPECT_EQ(sparse.room[t][sparse.values[t].size() + k], kUntouched);
    }
  }
}

TEST(MlpSparse, BothFormsMatchTheReferenceInManyShapes) {
  for (const size_t hidden : {1, 7, 16, 100, 129}) {
    for (const auto& [batch, inputs] : {std::pair<size_t, size_t>{1, 784}, {33, 150}, {7, 1}}) {
      SCOPED_TRACE(::testing::Message() << batch << " x " << inputs << "-" << hidden);
      expect_both_forms_right({.batch = batch, .inputs = inputs, .hidden = hidden, .classes = 10});
    }
  }
  expect_both_forms_right({});
}

TEST(MlpSparse, PixelsBlackInTheWholeBatchHaveZeroGradient) {
  const Mlp::Shape shape{.batch = 4, .inputs = 6};
  const Split split{.count = 4, .pixels = 6, .images = std::vector<uint8_t>(24), .labels = {0, 1, 2, 3}};
  BatchLoader loader(split, 4, kSeed, 0, BatchLoader::Form::kSparse);
  absl::StatusOr<std::unique_ptr<Mlp>> mlp = Mlp::create(shape, 1);
  ASSERT_TRUE(mlp.ok()) << mlp.status();
  Tensorset tensors(shape);
  (*mlp)->step(loader.next_sparse(), tensors.parameters, tensors.gradients, nullptr);
  for (const float value : tensors.gradients[0]) ASSERT_EQ(value, 0.0f);
}

TEST(MlpSparse, SameInputsGiveTheSameBitsAndDivergedOnesShow) {
  const Mlp::Shape shape{};
  const Split split = mixed_split(100, shape.inputs, kSeed);
  absl::StatusOr<std::unique_ptr<Mlp>> mlp = Mlp::create(shape, 1);
  ASSERT_TRUE(mlp.ok()) << mlp.status();
  BatchLoader loader(split, 100, kSeed, 0, BatchLoader::Form::kSparse);
  const SparseBatch batch = loader.next_sparse();
  Tensorset first(shape), second(shape);
  const float cost = (*mlp)->step(batch, first.parameters, first.gradients, nullptr);
  EXPECT_EQ(cost, (*mlp)->step(batch, second.parameters, second.gradients, nullptr));
  EXPECT_EQ(first.room, second.room);
  std::fill(first.values[0].begin(), first.values[0].end(), std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(std::isnan((*mlp)->step(batch, first.parameters, first.gradients, nullptr)));
}

}  // namespace
}  // namespace gradrail::worker
