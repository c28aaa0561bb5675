#include "tools/gradrail/checkpoint_arrays.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/output_file.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gradrail/clock.h"
#include "ps/checkpoint/folder.h"
#include "ps/checkpoint/folder_lock.h"
#include "ps/checkpoint/set.h"
#include "ps/protocol/schema.h"
#include "tools/gradrail/named_array.h"
#include "tools/gradrail/npz.h"
#include "tools/gradrail/safetensors.h"

namespace gradrail::tools {
namespace {

constexpr std::string_view kGlobalStep = ":global_step";
/// Key of the metadata.
const std::string kOptimizer = "optimizer";

/// Names of an optimizer's state vectors, as in ps::apply().
std::vector<std::string> state_names(OptimizerKind kind) {
  if (kind == OptimizerKind::delayed_nesterov) return {":collected", ":velocity"};
  if (ps::state_vectors(kind) == 2) return {":m", ":v"};
  if (ps::state_vectors(kind) == 1) return {":velocity"};
  return {};
}

/// The part of a name that marks a state vector; "" for a parameter. Names of parameters may hold other colons.
std::string_view suffix_of(std::string_view name) {
  for (const std::string_view suffix : {":m", ":v", ":velocity", ":collected"}) {
    if (name.ends_with(suffix)) return suffix;
  }
  return "";
}

void add_tensors(const Schema& schema, absl::Span<const float> values, const std::string& suffix,
                 std::vector<NamedArray>& arrays) {
  const ps::Layout layout = ps::layout_of(schema);
  for (size_t i = 0; i < schema.size(); ++i) {
    const Tensor& tensor = schema[i];
    const absl::Span<const float> part = values.subspan(layout.tensor_first[i], tensor.elements());
    // A colon separates tensor and vector, as in ":m". Names of tensors are those of the model.
    arrays.push_back({.name = tensor.name + suffix,
                      .shape = tensor.shape,
                      .bytes = {reinterpret_cast<const std::byte*>(part.data()), part.size() * sizeof(float)}});
  }
}

/// The arrays of a file by their meaning.
class Arrays {
 public:
  explicit Arrays(const SafetensorsFile& file) : path_(file.path) {
    for (const NamedArray& array : file.arrays) {
      by_name_[array.name] = &array;
      if (suffix_of(array.name).empty() && array.name != kGlobalStep) parameters_.push_back(&array);
    }
  }

  bool has_step() const { return by_name_.contains(kGlobalStep); }
  absl::StatusOr<uint64_t> global_step() const {
    const auto found = by_name_.find(kGlobalStep);
    if (found == by_name_.end()) return 0;
    const NamedArray& array = *found->second;
    int64_t step = -1;
    if (array.type == NamedArray::Type::int64 && array.bytes.size() == sizeof(step))
      std::memcpy(&step, array.bytes.data(), sizeof(step));
    if (step < 0 || static_cast<uint64_t>(step) > ps::kMaxGlobalStep)
      return refused(array.name, fmt::format("must be one number of int64, from 0 to {}", ps::kMaxGlobalStep));
    return static_cast<uint64_t>(step);
  }

  absl::StatusOr<Schema> schema() const {
    if (parameters_.empty()) return absl::InvalidArgumentError(fmt::format("{}: has no array of parameters", path_));
    Schema schema;
    for (const NamedArray* array : parameters_) {
      if (array->type != NamedArray::Type::float32)
        return refused(array->name, "is int64, and parameters are float32: leave out counters and other buffers");
      // A scalar of the file has one element here.
      schema.push_back({array->name, array->shape.empty() ? std::vector<int64_t>{1} : array->shape});
    }
    const absl::Status valid = validate(schema);
    if (!valid.ok()) return absl::InvalidArgumentError(fmt::format("{}: {}", path_, message_of(valid)));
    return schema;
  }

  /// Fills `values` with the arrays of this suffix in the order of the schema. "" means the parameters.
  absl::Status copy(const std::string& suffix, absl::Span<float> values) const {
    for (const NamedArray* parameter : parameters_) {
      const auto found = by_name_.find(parameter->name + suffix);
      if (found == by_name_.end()) return refused(parameter->name + suffix, "is missing");
      const NamedArray& array = *found->second;
      if (array.type != NamedArray::Type::float32 || array.shape != parameter->shape)
        return refused(array.name, fmt::format("must be float32 and have the shape of {}", parameter->name));
      std::memcpy(values.data(), array.bytes.data(), array.bytes.size());
      values.remove_prefix(array.bytes.size() / sizeof(float));
    }
    return absl::OkStatus();
  }

  /// False: the file has no array of an optimizer's state.
  /// Errors  An array is not a state of `kind` for a parameter of the file.
  absl::StatusOr<bool> has_state(OptimizerKind kind) const {
    const std::vector<std::string> known = state_names(kind);
    bool found = false;
    for (const auto& [name, array] : by_name_) {
      const std::string_view suffix = suffix_of(name);
      if (suffix.empty()) continue;
      const bool is_known = std::find(known.begin(), known.end(), suffix) != known.end();
      if (!is_known || !by_name_.contains(name.substr(0, name.size() - suffix.size())))
        return refused(
            name, fmt::format("is no state of optimizer {} for an array of the file: give the --optimizer that made it",
                              optimizer_name(kind)));
      found = true;
    }
    return found;
  }

 private:
  absl::Status refused(std::string_view array, std::string_view why) const {
    return absl::InvalidArgumentError(fmt::format("{}: array {} {}", path_, array, why));
  }

  const std::string& path_;
  std::map<std::string_view, const NamedArray*> by_name_;
  std::vector<const NamedArray*> parameters_;
};

absl::StatusOr<OptimizerKind> optimizer_of(const SafetensorsFile& file, const ImportFlags& flags) {
  if (flags.optimizer.has_value()) return *flags.optimizer;
  const auto named = file.metadata.find(kOptimizer);
  if (named == file.metadata.end())
    return absl::InvalidArgumentError(
        fmt::format("{}: does not name an optimizer: give --optimizer, such as adamw", file.path));
  return parse_optimizer(named->second);
}

absl::StatusOr<ps::Checkpoint> to_checkpoint(const SafetensorsFile& file, OptimizerKind kind) {
  const Arrays arrays(file);
  ps::Checkpoint checkpoint;
  ps::CheckpointHeader& header = checkpoint.header;
  header.optimizer.kind = kind;
  GRADRAIL_ASSIGN_OR_RETURN(header.schema, arrays.schema());
  GRADRAIL_ASSIGN_OR_RETURN(header.global_step, arrays.global_step());
  for (const Tensor& tensor : header.schema) header.range.count += tensor.elements();
  header.bucket_versions = {header.global_step};
  checkpoint.parameters.resize(header.range.count);
  GRADRAIL_RETURN_IF_ERROR(arrays.copy("", absl::MakeSpan(checkpoint.parameters)));
  checkpoint.state.resize(static_cast<size_t>(ps::state_vectors(kind)), std::vector<float>(header.range.count));
  GRADRAIL_ASSIGN_OR_RETURN(const bool has_state, arrays.has_state(kind));
  if (!has_state && !checkpoint.state.empty() && header.global_step > 0) {
    return absl::InvalidArgumentError(
        fmt::format("{}: has step {} and no state of {}: export it with --optimizer-state, or leave out {}", file.path,
                    header.global_step, optimizer_name(kind), kGlobalStep));
  }
  const std::vector<std::string> names = state_names(kind);
  for (size_t i = 0; has_state && i < names.size(); ++i)
    GRADRAIL_RETURN_IF_ERROR(arrays.copy(names[i], absl::MakeSpan(checkpoint.state[i])));
  if (has_state && !arrays.has_step()) {
    return absl::InvalidArgumentError(fmt::format(
        "{}: has a state and no array {}: add the steps that the optimizer has made", file.path, kGlobalStep));
  }
  return checkpoint;
}

}  // namespace

absl::Status export_arrays(const ExportFlags& flags) {
  std::error_code ignored;  // the write reports it
  if (std::filesystem::is_directory(flags.out, ignored)) {
    return absl::FailedPreconditionError(
        fmt::format("--out {}: is a folder; give the name of a file, such as {}", flags.out,
                    (std::filesystem::path(flags.out) / "model.safetensors").string()));
  }
  const bool is_safetensors = flags.out.ends_with(".safetensors");
  // First: a build without libzip, or a wrong folder, fails before it reads gigabytes.
  if (!is_safetensors) GRADRAIL_RETURN_IF_ERROR(check_npz());
  if (const absl::Status usable = check_output_file(flags.out, OutputKind::replaced); !usable.ok())
    return absl::Status(usable.code(), fmt::format("--out {}", message_of(usable)));
  // A given step must exist; without one a damaged newest set falls back to the one before it.
  GRADRAIL_ASSIGN_OR_RETURN(const ps::Checkpoint checkpoint, flags.step.has_value()
                                                                 ? ps::read_checkpoint_set(flags.folder, *flags.step)
                                                                 : ps::read_newest_set(flags.folder));
  const ps::CheckpointHeader& header = checkpoint.header;
  std::vector<NamedArray> arrays;
  add_tensors(header.schema, checkpoint.parameters, "", arrays);
  const auto step = static_cast<int64_t>(header.global_step);
  if (flags.optimizer_state) {
    const std::vector<std::string> names = state_names(header.optimizer.kind);
    for (size_t i = 0; i < names.size(); ++i) add_tensors(header.schema, checkpoint.state[i], names[i], arrays);
    arrays.push_back({.name = std::string(kGlobalStep),
                      .type = NamedArray::Type::int64,
                      .shape = {},
                      .bytes = {reinterpret_cast<const std::byte*>(&step), sizeof(step)}});
  }
  const std::string optimizer(optimizer_name(header.optimizer.kind));
  GRADRAIL_RETURN_IF_ERROR(is_safetensors ? write_safetensors(flags.out, arrays, {{kOptimizer, optimizer}})
                                          : write_npz(flags.out, arrays));
  fmt::print("{}: {} arrays of step {}\n", flags.out, arrays.size(), header.global_step);
  return absl::OkStatus();
}

absl::Status import_arrays(const ImportFlags& flags) {
  GRADRAIL_ASSIGN_OR_RETURN(const SafetensorsFile file, read_safetensors(flags.from));
  GRADRAIL_ASSIGN_OR_RETURN(const OptimizerKind kind, optimizer_of(file, flags));
  GRADRAIL_ASSIGN_OR_RETURN(ps::Checkpoint checkpoint, to_checkpoint(file, kind));
  // An error is reported by the next call, which names the folder.
  std::error_code ignored;
  std::filesystem::create_directories(flags.folder, ignored);
  GRADRAIL_RETURN_IF_ERROR(ps::prepare_checkpoint_folder(flags.folder).status());
  GRADRAIL_ASSIGN_OR_RETURN(const ps::FolderLock lock,
                            ps::FolderLock::take(flags.folder, "gradrail checkpoint import", 0, Duration::zero()));
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<ps::CheckpointSet> sets, ps::list_checkpoint_sets(flags.folder));
  if (!sets.empty()) {
    return absl::FailedPreconditionError(fmt::format("{}: holds a checkpoint of step {} already: give another folder",
                                                     flags.folder, sets.front().global_step));
  }
  ps::CheckpointHeader& header = checkpoint.header;
  header.saved_us = static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count());
  const ps::CheckpointView view{.header = &header,
                                .parameters = checkpoint.parameters,
                                .state = {checkpoint.state.begin(), checkpoint.state.end()}};
  GRADRAIL_RETURN_IF_ERROR(ps::write_checkpoint(
      flags.folder + "/" + ps::checkpoint_file_name(header.global_step, header.saved_us, 0, 1), view));
  fmt::print("{}: {} tensors of step {} for the optimizer {}\n", flags.folder, header.schema.size(), header.global_step,
             optimizer_name(kind));
  return absl::OkStatus();
}

}  // namespace gradrail::tools
