#include "worker/models/accuracy.h"

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace gradrail::worker {
namespace {

size_t count_right(const float* logits, const uint8_t* labels, size_t rows, size_t classes) {
  size_t right = 0;
  for (size_t row = 0; row < rows; ++row) {
    const float* values = logits + row * classes;
    const auto likeliest = std::max_element(values, values + classes) - values;
    right += likeliest == labels[row] ? 1 : 0;
  }
  return right;
}

}  // namespace

float accuracy(const AccuracyShape& shape, absl::Span<const uint8_t> images, absl::Span<const uint8_t> labels,
               LogitsOf logits_of) {
  GRADRAIL_CHECK(!labels.empty() && images.size() == labels.size() * shape.pixels);
  std::vector<float> numbers(shape.batch * shape.pixels);
  size_t right = 0;
  for (size_t first = 0; first < labels.size(); first += shape.batch) {
    // Networks have a fixed batch. Rows after the last image keep older values, and count_right() ignores them.
    const size_t rows = std::min(shape.batch, labels.size() - first);
    shape.scale(images.data() + first * shape.pixels, rows * shape.pixels, numbers.data());
    right += count_right(logits_of(numbers.data()), labels.data() + first, rows, shape.classes);
  }
  return static_cast<float>(right) / static_cast<float>(labels.size());
}

}  // namespace gradrail::worker
