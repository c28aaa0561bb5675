// A layer list, one line for each tensor in the order in which gradients become ready:
//
//   name bytes microseconds     # comment
//   fc.weight 8192000 41000.0   8,192,000 bytes of fp32, ready 41 ms after the step began
//
#include "bench/suites/layer_list.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/read_file.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace gradrail::bench {
namespace {

namespace fs = std::filesystem;

// The largest published models have some thousand tensors. A file with more lines than this is another kind of file.
constexpr size_t kMostLayers = 100'000;
constexpr size_t kMaxListBytes = size_t{16} << 20;
// Microseconds. A worker spins through the backward pass; a larger number is a mistake in the unit.
constexpr double kLongestStep = 60e6;

/// Folders beside the program in its build tree, or of the installation.
std::vector<fs::path> folders() {
  const fs::path program = program_folder();
  // An installed program uses its own lists, also where the build tree still exists.
  return {program / "../share/gradrail/layers", program / "../bench/layers"};
}

absl::StatusOr<fs::path> find(const std::string& file) {
  std::error_code error;
  // A file or pipe of the user wins over a built-in list of the same name; a folder does not.
  const bool is_folder = fs::is_directory(file, error);
  if (!is_folder && fs::exists(file, error)) return fs::path(file);
  std::vector<std::string> known;
  for (const fs::path& folder : folders()) {
    const fs::path candidate = folder / (file + ".txt");
    if (file.find('/') == std::string::npos && fs::is_regular_file(candidate, error)) return candidate;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, error))
      known.push_back(entry.path().stem().string());
  }
  if (is_folder) return fs::path(file);  // the read reports it
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  return absl::NotFoundError(fmt::format("no file {}; lists that come along: {}", file,
                                         known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", "))));
}

absl::StatusOr<ExchangeLoad::Layer> parse(const std::string& line) {
  std::istringstream words(line);
  std::string name, rest;
  // A double also reads 1e6; up to 1e12 it holds each integer exactly.
  double bytes = 0.0, micros = 0.0;
  if (!(words >> name >> bytes >> micros) || words >> rest)
    return absl::DataLossError("must be `name bytes microseconds`");
  // Written as a negation, so that NaN is rejected, too.
  if (!(bytes >= 4 && bytes <= 1e12) || std::fmod(bytes, 4.0) != 0.0)
    return absl::DataLossError("bytes must be a positive multiple of 4");
  if (!(micros >= 0 && micros <= kLongestStep))
    return absl::DataLossError(fmt::format("microseconds must be 0 to {:.0f}", kLongestStep));
  return ExchangeLoad::Layer{static_cast<uint64_t>(bytes) / sizeof(float), micros};
}

absl::StatusOr<LayerList> list_of_lines(const fs::path& path, const std::string& content) {
  std::istringstream text(content);
  LayerList list{.name = path.stem().string(), .layers = {}};
  size_t number = 0;
  for (std::string line; std::getline(text, line);) {
    ++number;
    line.resize(std::min(line.find('#'), line.size()));
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const absl::StatusOr<ExchangeLoad::Layer> layer = parse(line);
    if (!layer.ok() || list.layers.size() == kMostLayers) {
      return absl::DataLossError(
          fmt::format("{}:{}: {}", path.string(), number, layer.ok() ? "too many layers" : message_of(layer.status())));
    }
    // The worker passes layers on in the order of the file: an earlier one behind a later one would wait for it.
    if (!list.layers.empty() && layer->ready_us < list.layers.back().ready_us)
      return absl::DataLossError(fmt::format("{}:{}: ready before the line above", path.string(), number));
    list.layers.push_back(*layer);
  }
  if (list.layers.empty()) return absl::DataLossError(fmt::format("{}: no layers", path.string()));
  return list;
}

/// A trace in JSON, also a packed one.
bool is_trace(std::string_view content) {
  const size_t first = content.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  return content.starts_with("\x1f\x8b") || (first != content.npos && (content[first] == '{' || content[first] == '['));
}

}  // namespace

uint64_t LayerList::bytes() const {
  uint64_t elements = 0;
  for (const ExchangeLoad::Layer& layer : layers) elements += layer.elements;
  return elements * sizeof(float);
}

absl::StatusOr<LayerList> read_layer_list(const std::string& file) {
  GRADRAIL_ASSIGN_OR_RETURN(const fs::path path, find(file));
  GRADRAIL_ASSIGN_OR_RETURN(const std::string content, read_file(path.string(), kMaxListBytes, FileKind::any));
  if (!is_trace(content)) return list_of_lines(path, content);
  return absl::DataLossError(
      fmt::format("{}: no layer list; `gradrail-report convert FILE -o LIST` converts a trace", path.string()));
}

}  // namespace gradrail::bench
