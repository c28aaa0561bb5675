#include "ps/protocol/schema.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "base/check.h"
#include "base/status.h"
#include "base/utf8.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "ps/protocol/exchange_layout.h"

namespace gradrail {
namespace {

using ps::kMaxElements;

constexpr size_t kMaxNameBytes = 1024;  // a path of modules in a large model has some hundred

std::string describe(const Tensor& tensor) {
  const std::string shape = fmt::format("'{}' [{}]", tensor.name, fmt::join(tensor.shape, "×"));
  return tensor.fragment.empty() ? shape : fmt::format("{} of fragment '{}'", shape, tensor.fragment);
}

/// Names stand in JSON files and archives, which take UTF-8 only.
bool is_utf8(std::string_view text) {
  while (const size_t bytes = utf8_character_bytes(text)) text.remove_prefix(bytes);
  return text.empty();
}

/// The reason why a tensor cannot have this name; "" for a good one.
std::string mistake_in_name(std::string_view name) {
  if (name.size() > kMaxNameBytes)
    return fmt::format("its name has {} bytes; the limit is {}", name.size(), kMaxNameBytes);
  if (!is_utf8(name)) return "its name is not UTF-8";
  // Names stand in logs, tables and file names of archives.
  if (std::any_of(name.begin(), name.end(), is_control))
    return fmt::format("its name '{}' contains a control character", escaped(name));
  return "";
}

/// 0: more than kMaxElements, or a dimension < 1.
uint64_t checked_elements(const Tensor& tensor) {
  uint64_t elements = 1;
  for (const int64_t dimension : tensor.shape) {
    // A division, because the product of the dimensions could overflow.
    if (dimension < 1 || static_cast<uint64_t>(dimension) > kMaxElements / elements) return 0;
    elements *= static_cast<uint64_t>(dimension);
  }
  return elements;
}

}  // namespace

uint64_t Tensor::elements() const { return checked_elements(*this); }

absl::Status validate(const Schema& schema) {
  if (schema.empty()) return absl::InvalidArgumentError("schema: no tensors");
  std::set<std::string> names;
  uint64_t total = 0;
  for (const Tensor& tensor : schema) {
    if (tensor.name.empty()) return absl::InvalidArgumentError("schema: a tensor without a name");
    // The message has the position: the name is not fit for it.
    if (const std::string mistake = mistake_in_name(tensor.name); !mistake.empty())
      return absl::InvalidArgumentError(fmt::format("schema: tensor {}: {}", &tensor - schema.data(), mistake));
    if (const std::string mistake = mistake_in_name(tensor.fragment); !mistake.empty())
      return absl::InvalidArgumentError(fmt::format("schema: fragment of tensor '{}': {}", tensor.name, mistake));
    if (!names.insert(tensor.name).second) {
      return absl::InvalidArgumentError(fmt::format("schema: two tensors named '{}'", tensor.name));
    }
    const uint64_t elements = checked_elements(tensor);
    total += elements;
    if (elements == 0 || total > kMaxElements) {
      return absl::InvalidArgumentError(
          fmt::format("schema: tensor {}: dimensions must be at least 1 and all elements together at most {}",
                      describe(tensor), kMaxElements));
    }
  }
  return absl::OkStatus();
}

namespace ps {

Layout layout_of(const Schema& schema) {
  Layout layout;
  std::map<std::string_view, uint32_t> indexes;
  for (const Tensor& tensor : schema) {
    const auto [place, is_new] = indexes.try_emplace(tensor.fragment, static_cast<uint32_t>(indexes.size()));
    if (is_new) layout.fragments.push_back(tensor.fragment);
    const uint32_t fragment = place->second;
    if (layout.runs.empty() || layout.runs.back().fragment != fragment) {
      layout.elements = (layout.elements + kScaleBlock - 1) / kScaleBlock * kScaleBlock;
      layout.runs.push_back({.first = layout.elements, .fragment = fragment});
    }
    layout.tensor_first.push_back(layout.elements);
    layout.tensor_fragment.push_back(fragment);
    layout.elements += tensor.elements();
  }
  return layout;
}

uint32_t Layout::fragment_at(uint64_t element) const {
  GRADRAIL_CHECK(element < elements);
  const auto next = std::upper_bound(runs.begin(), runs.end(), element,
                                     [](uint64_t wanted, const Run& run) { return wanted < run.first; });
  return std::prev(next)->fragment;
}

std::string difference(const Schema& ours, const Schema& theirs, const Sides& sides) {
  for (size_t i = 0; i < std::min(ours.size(), theirs.size()); ++i) {
    if (ours[i] != theirs[i]) {
      return fmt::format("tensor {}: {} {}, {} {}", i, describe(ours[i]), sides.ours, describe(theirs[i]),
                         sides.theirs);
    }
  }
  if (ours.size() != theirs.size())
    return fmt::format("{} tensors {}, {} {}", ours.size(), sides.ours, theirs.size(), sides.theirs);
  return "";
}

}  // namespace ps
}  // namespace gradrail
