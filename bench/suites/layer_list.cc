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
#include "bench/layers/gunzip.h"
#include "bench/layers/trace_errors.h"
#include "bench/layers/traces.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace gradrail::bench {
namespace {

namespace fs = std::filesystem;

// The largest published models have some thousand tensors. A file with more lines than this is another kind of file.
constexpr size_t kMostLayers = 100'000;
// A trace of some steps has up to some hundred megabytes.
constexpr size_t kMaxListBytes = size_t{1} << 30;
// PyTorch writes the schema of an execution trace first.
constexpr size_t kHeadBytes = 256;
// Microseconds. A worker spins through the backward pass; a larger number is a mistake in the unit.
constexpr double kLongestStep = 60e6;

/// Beside the program in its build tree, or where it was installed.
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
  if (is_folder) return fs::path(file);  // reading it says so
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
    return absl::DataLossError("must be `name bytes microseconds`; a trace begins with { or [");
  // Written as a negation, so that NaN is rejected, too.
  if (!(bytes >= 4 && bytes <= 1e12) || std::fmod(bytes, 4.0) != 0.0)
    return absl::DataLossError("bytes must be a positive multiple of 4");
  if (!(micros >= 0 && micros <= kLongestStep))
    return absl::DataLossError(fmt::format("microseconds must be 0 to {:.0f}", kLongestStep));
  return ExchangeLoad::Layer{static_cast<uint64_t>(bytes) / sizeof(float), micros};
}

absl::StatusOr<LayerList> list_of_lines(const fs::path& path, const std::string& content) {
  std::istringstream text(content);
  LayerList list{.name = path.stem().string(), .layers = {}, .about = ""};
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
    // The worker hands layers over in the order of the file: an earlier one behind a later one would wait for it.
    if (!list.layers.empty() && layer->ready_us < list.layers.back().ready_us)
      return absl::DataLossError(fmt::format("{}:{}: ready before the line above", path.string(), number));
    list.layers.push_back(*layer);
  }
  if (list.layers.empty()) return absl::DataLossError(fmt::format("{}: no layers", path.string()));
  return list;
}

/// Files that people give in place of a text; "" for others.
std::string why_no_text(std::string_view content) {
  if (content.starts_with("\xff\xfe") || content.starts_with("\xfe\xff"))
    return "text in UTF-16; convert it with iconv -f UTF-16 -t UTF-8";
  const std::string_view head = content.substr(0, 64);
  // protobuf frames each message with its length and marks its fields with bytes below 32.
  if (std::any_of(head.begin(), head.end(), [](char c) { return c >= 0 && c < ' ' && (c < '\t' || c > '\r'); }))
    return "binary, no layer list and no trace in JSON; convert a Chakra trace with chakra_jsonizer";
  return "";
}

absl::StatusOr<TracedStep> step_of_trace(std::string_view content) {
  const auto has = [&](std::string_view word) { return content.find(word) != std::string_view::npos; };
  const bool is_list = content.starts_with('[');
  if (is_list && !has("\"ph\"")) return unknown_kind("a JSON list without \"ph\"");
  // Metadata may come before the events; a Chakra trace has no such word.
  const bool is_kineto = is_list || has("\"traceEvents\"");
  const bool is_execution = content.substr(0, kHeadBytes).find("\"schema\":") != std::string_view::npos;
  GRADRAIL_ASSIGN_OR_RETURN(TracedStep step, is_kineto      ? step_of_kineto(content)
                                             : is_execution ? step_of_execution_trace(content)
                                                            : step_of_chakra(content));
  std::stable_sort(step.layers.begin(), step.layers.end(),
                   [](const auto& a, const auto& b) { return a.ready_us < b.ready_us; });
  if (step.layers.size() > kMostLayers)
    return absl::DataLossError(fmt::format("{} reductions in one step, more than {}", step.layers.size(), kMostLayers));
  if (step.layers.back().ready_us > kLongestStep) {
    return absl::DataLossError(fmt::format("{}: a reduction begins after {:.3g} s, and a step has at most {:.0f} s",
                                           step.about, step.layers.back().ready_us * 1e-6, kLongestStep * 1e-6));
  }
  return step;
}

}  // namespace

uint64_t LayerList::bytes() const {
  uint64_t elements = 0;
  for (const ExchangeLoad::Layer& layer : layers) elements += layer.elements;
  return elements * sizeof(float);
}

absl::StatusOr<LayerList> read_layer_list(const std::string& file) {
  GRADRAIL_ASSIGN_OR_RETURN(const fs::path path, find(file));
  GRADRAIL_ASSIGN_OR_RETURN(const std::string content, read_unpacked(path.string(), kMaxListBytes));
  if (const std::string why = why_no_text(content); !why.empty())
    return absl::DataLossError(fmt::format("{}: {}", path.string(), why));
  // A text in UTF-8 may begin with a mark of its encoding.
  const std::string_view text = std::string_view(content).substr(content.starts_with("\xef\xbb\xbf") ? 3 : 0);
  const std::string_view body = text.substr(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  if (!body.starts_with('{') && !body.starts_with('[')) return list_of_lines(path, std::string(text));
  absl::StatusOr<TracedStep> step = step_of_trace(body);
  if (!step.ok()) return absl::DataLossError(fmt::format("{}: {}", path.string(), message_of(step.status())));
  return LayerList{.name = path.stem().string(), .layers = std::move(step->layers), .about = std::move(step->about)};
}

}  // namespace gradrail::bench
