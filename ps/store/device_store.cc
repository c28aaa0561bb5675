#include <algorithm>
#include <climits>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "base/check.h"
#include "base/log.h"
#include "base/parse_number.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gpu/compute/compute.h"
#include "gpu/compute/stream_marks.h"
#include "gpu/direct/dma_buf.h"
#include "gpu/direct/ipc.h"
#include "ps/optimizer/isa.h"
#include "ps/optimizer/optimizer.h"
#include "ps/protocol/exchange_layout.h"
#include "ps/store/gpu_format.h"
#include "ps/store/parameter_store.h"
#include "ps/store/store_device.h"

namespace gradrail::ps {
namespace {

constexpr std::string_view kGpuPrefix = "gpu:";
/// Lists of so many addresses need no memory of the heap.
constexpr size_t kUsualBuffers = 16;

gpu::UpdateRule rule_of(const OptimizerConfig& optimizer, uint64_t update_index) {
  switch (optimizer.kind) {
    case OptimizerKind::sgd:
      return gpu::UpdateRule::sgd;
    case OptimizerKind::momentum:
      return gpu::UpdateRule::momentum;
    case OptimizerKind::nesterov:
      return gpu::UpdateRule::nesterov;
    case OptimizerKind::adam:
    case OptimizerKind::adamw:
    case OptimizerKind::torch_adam:
      return gpu::UpdateRule::adam;
    case OptimizerKind::mean:
      return gpu::UpdateRule::mean;
    case OptimizerKind::delayed_nesterov:
      return updates_momentum(optimizer, update_index) ? gpu::UpdateRule::delayed_nesterov : gpu::UpdateRule::collect;
  }
  GRADRAIL_CHECK(false);
}

/// Memory outside the store that the device reads and writes directly: pinned host memory, and memory that workers on
/// this host export. It is a separate object, because the store and its handles end in any order.
class ReachableMemory {
 public:
  /// `settle` waits for the work of the device, which may use a range that ends.
  explicit ReachableMemory(std::function<void()> settle) : settle_(std::move(settle)) {}

  void add(const void* data, size_t bytes, std::shared_ptr<void> owner) {
    ranges_.emplace(static_cast<const std::byte*>(data), Range{bytes, std::move(owner)});
  }
  /// Removes one of the ranges that begin there: a second connection of a worker maps the same memory again.
  void remove(const void* data) {
    const auto found = ranges_.find(static_cast<const std::byte*>(data));
    if (found == ranges_.end()) return;
    if (settle_) settle_();
    ranges_.erase(found);
  }
  /// The device does nothing any more.
  void on_store_end() { settle_ = nullptr; }
  bool holds(const void* data, size_t bytes) const {
    const auto* first = static_cast<const std::byte*>(data);
    auto next = ranges_.upper_bound(first);
    if (next == ranges_.begin()) return false;
    // Ranges do not overlap, except for equal ones: only the nearest start can hold the address.
    const auto& [start, range] = *--next;
    return first + bytes <= start + range.bytes;
  }

 private:
  struct Range {
    size_t bytes = 0;
    std::shared_ptr<void> owner;  // ends the mapping
  };
  std::function<void()> settle_;
  std::multimap<const std::byte*, Range> ranges_;
};

/// Runs of elements that have changed since they were taken.
class ChangedRuns {
 public:
  void add(size_t first, size_t end) {
    auto next = runs_.upper_bound(first);
    if (next != runs_.begin() && std::prev(next)->second >= first) first = (--next)->first;
    for (; next != runs_.end() && next->first <= end; next = runs_.erase(next)) end = std::max(end, next->second);
    runs_.emplace(first, end);
  }

  /// Calls `each` with the parts of the runs between `first` and `end`, which are taken then.
  template <typename Each>
  void take(size_t first, size_t end, Each each) {
    auto run = runs_.upper_bound(first);
    if (run != runs_.begin()) --run;
    while (run != runs_.end() && run->first < end) {
      const auto [run_first, run_end] = *run;
      if (run_end <= first) {
        ++run;
        continue;
      }
      run = runs_.erase(run);
      if (run_first < first) runs_.emplace(run_first, first);
      if (run_end > end) runs_.emplace(end, run_end);
      each(std::max(run_first, first), std::min(run_end, end));
    }
  }

 private:
  std::map<size_t, size_t> runs_;  ///< the end of each run by its first element; they neither touch nor overlap
};

/// Parameters and state in GPU memory. The host copy has what fresh_parameters() has downloaded. Updates and copies are
/// enqueued, and so is begin_download(); all other calls wait for what they enqueue.
class DeviceStore final : public ParameterStore, public StoreDevice {
 public:
  DeviceStore(std::unique_ptr<gpu::Compute> device, const OptimizerConfig& optimizer, SharedMemory memory, size_t count)
      : ParameterStore(optimizer, memory.span(), count),
        memory_(std::move(memory)),
        device_(std::move(device)),
        reachable_(std::make_shared<ReachableMemory>([this] { finish().IgnoreError(); })) {}
  ~DeviceStore() override {
    finish().IgnoreError();
    reachable_->on_store_end();
  }

  absl::Status allocate() {
    const size_t bytes = count_ * sizeof(float);
    // The space for patterns follows the parameters: one registration covers both.
    GRADRAIL_RETURN_IF_ERROR(allocate(on_device_, gpu::own_allocation(check_offset() + kCheckBytes)));
    for (int i = 0; i < state_vectors(optimizer_.kind); ++i) GRADRAIL_RETURN_IF_ERROR(allocate(state_[i], bytes));
    // Downloads to the host copy would wait for the device without this pin.
    copy_pin_ = pin(ParameterStore::parameters());
    // cuMemAlloc() does not clear: an optimizer must begin with state 0.
    const std::vector<float> zeros(count_, 0.0f);
    for (int i = 0; i < state_vectors(optimizer_.kind); ++i) GRADRAIL_RETURN_IF_ERROR(set_state(i, 0, zeros));
    return set(0, zeros);
  }

  std::string where() const override { return device_->name(); }
  StoreDevice* device() override { return this; }

  PinnedRange pin(MemorySpan memory) override {
    // A shard without elements has nothing to pin, and the driver refuses 0 bytes.
    if (memory.bytes == 0) return {};
    absl::StatusOr<std::unique_ptr<gpu::Pin>> pinned = device_->pin(memory.data, memory.bytes);
    if (!pinned.ok()) {
      log_warning("{}: {} bytes of host memory cannot be pinned, so they need an additional copy: {}", where(),
                  memory.bytes, message_of(pinned.status()));
      return {};
    }
    reachable_->add(memory.data, memory.bytes, *std::move(pinned));
    return {memory.data, [ranges = reachable_](const void* data) { ranges->remove(data); }};
  }

  absl::StatusOr<DeviceVariables> map_variables(const std::string& key, size_t model_elements,
                                                PushFormat push) override {
    const size_t bytes = device_block_bytes(model_elements, push);
    GRADRAIL_ASSIGN_OR_RETURN(std::unique_ptr<gpu::Memory> mapped, gpu::map_memory(*device_, key));
    // Another process sends the key: kernels would write behind memory that is too small.
    if (mapped->bytes() < bytes) {
      return absl::InvalidArgumentError(
          fmt::format("{} bytes of GPU memory are offered, {} are needed", mapped->bytes(), bytes));
    }
    auto* parameters = mapped->as<float>();
    reachable_->add(parameters, bytes, std::move(mapped));
    return DeviceVariables{.parameters = parameters,
                           .gradients = parameters + device_gradients_at(model_elements),
                           .check = reinterpret_cast<std::byte*>(parameters) + device_check_at(model_elements, push),
                           .mapping = {parameters, [ranges = reachable_](const void* data) { ranges->remove(data); }}};
  }

  size_t check_offset() const override { return device_gradients_at(count_) * sizeof(float); }

  absl::StatusOr<MemorySpan> parameters_for(NicGpuTransfer way) override {
    const size_t bytes = check_offset() + kCheckBytes;
    return reachable_by_nics(way, {.data = on_device_->data(), .bytes = bytes, .kind = MemoryKind::cuda});
  }

  absl::StatusOr<DeviceSlots> allocate_slots(NicGpuTransfer way, size_t bytes) override {
    std::unique_ptr<gpu::Memory> memory;
    GRADRAIL_RETURN_IF_ERROR(allocate(memory, gpu::own_allocation(bytes)));
    std::byte* const data = memory->data();
    GRADRAIL_ASSIGN_OR_RETURN(const MemorySpan span,
                              reachable_by_nics(way, {.data = data, .bytes = bytes, .kind = MemoryKind::cuda}));
    reachable_->add(data, bytes, std::move(memory));
    return DeviceSlots{.memory = span,
                       .owner = {data, [ranges = reachable_](const void* begin) { ranges->remove(begin); }}};
  }

  absl::Status flush_nic_writes() override { return gpu::flush_nic_writes(*device_); }

  absl::Status write_check(absl::Span<const std::byte> pattern) override {
    return write(on_device_->data() + check_offset(), pattern);
  }

  absl::Status write(std::byte* to, absl::Span<const std::byte> from) override {
    // An error of the updates before is not one of this copy.
    GRADRAIL_RETURN_IF_ERROR(finish());
    // upload() only starts the copy; finish() also returns its error.
    device_->upload(to, from.data(), from.size());
    return device_->finish();
  }

  absl::Status read(const std::byte* from, absl::Span<std::byte> to) override {
    GRADRAIL_RETURN_IF_ERROR(finish());
    return device_->wait(device_->download(to.data(), from, to.size()));
  }

  absl::StatusOr<uint32_t> crc32c(const void* data, size_t bytes) override {
    GRADRAIL_RETURN_IF_ERROR(finish());
    return device_->crc32c(data, bytes);
  }

  absl::Status failure() const override { return failure_; }
  void pause() override { turns_.turn(); }

  void begin_download(size_t offset, size_t count) override {
    GRADRAIL_CHECK(offset + count <= count_);
    changed_.take(offset, offset + count, [&](size_t first, size_t end) {
      last_download_ = device_->download(mutable_parameters() + first, on_device_->as<float>() + first,
                                         (end - first) * sizeof(float));
    });
  }

  DeviceTicket mark_work() override { return device_->download(nullptr, nullptr, 0); }

  absl::StatusOr<bool> has_ended(DeviceTicket mark) override {
    GRADRAIL_RETURN_IF_ERROR(failure_);
    if (!device_->is_done(mark)) return false;
    GRADRAIL_RETURN_IF_ERROR(wait(mark));
    turns_ = {};
    return true;
  }

  absl::StatusOr<const float*> fresh_parameters(size_t offset, size_t count) override {
    begin_download(offset, count);
    if (!last_download_.has_value()) return mutable_parameters() + offset;
    // Downloads end in their order. One that began earlier may be for this run.
    if (const absl::Status downloaded = wait(*last_download_); !downloaded.ok()) {
      changed_.add(offset, offset + count);
      return downloaded;
    }
    last_download_.reset();
    return mutable_parameters() + offset;
  }

  absl::Status copy_out(size_t offset, size_t count, float* target) override {
    // Memory that was not pinned: the processor copies.
    if (!reachable_->holds(target, count * sizeof(float))) {
      GRADRAIL_ASSIGN_OR_RETURN(const float* const values, fresh_parameters(offset, count));
      std::memcpy(target, values, count * sizeof(float));
      return absl::OkStatus();
    }
    copy(on_device_->as<float>() + offset, count, target);
    return failure_;
  }

  absl::Status set(size_t offset, absl::Span<const float> values) override {
    if (values.empty()) return absl::OkStatus();
    GRADRAIL_CHECK(offset + values.size() <= count_);
    const size_t bytes = values.size() * sizeof(float);
    float* target = on_device_->as<float>() + offset;
    changed_.add(offset, offset + values.size());
    // Memory of another process or of a NIC's slot can be device memory, which upload() cannot read.
    if (reachable_->holds(values.data(), bytes)) {
      copy(values.data(), values.size(), target);
    } else {
      device_->upload(target, values.data(), bytes);
    }
    return finish();
  }

  absl::Status update(size_t offset, size_t count, absl::Span<const float* const> gradients,
                      absl::Span<float* const> targets, Step step) override {
    GRADRAIL_CHECK(!gradients.empty() && offset + count <= count_);
    if (count == 0) return absl::OkStatus();
    absl::InlinedVector<const float*, kUsualBuffers> sources(gradients.begin(), gradients.end());
    GRADRAIL_RETURN_IF_ERROR(fetch(packed_bytes(count, step.format), absl::MakeSpan(sources)));
    float scale = 1.0f / static_cast<float>(gradients.size());
    if (sources.size() > gpu::kMaxBuffers) {
      const bool packed = step.format != PushFormat::fp32;
      GRADRAIL_RETURN_IF_ERROR(packed ? sum_widened_in_order(sources, count, scale, step.format)
                                      : sum_in_order(sources, count, scale));
      sources.assign(1, sum_->as<float>());
      scale = 1.0f;
      step.format = PushFormat::fp32;
    }
    // The kernel stores into memory that the device reaches; the other targets are copied when it has finished.
    absl::InlinedVector<float*, kUsualBuffers> stored_by_kernel;
    absl::InlinedVector<float*, kUsualBuffers> copied_after;
    for (float* target : targets) {
      const bool by_kernel =
          stored_by_kernel.size() < gpu::kMaxBuffers && reachable_->holds(target, count * sizeof(float));
      (by_kernel ? stored_by_kernel : copied_after).push_back(target);
    }
    changed_.add(offset, offset + count);
    launch(offset, count, sources, stored_by_kernel, scale, step);
    for (float* target : copied_after) GRADRAIL_RETURN_IF_ERROR(copy_out(offset, count, target));
    return failure_;
  }

  absl::Status copy_state(int vector, size_t offset, absl::Span<float> to) override {
    GRADRAIL_CHECK(offset + to.size() <= count_);
    if (to.empty()) return absl::OkStatus();
    return wait(device_->download(to.data(), state_[vector]->as<float>() + offset, to.size() * sizeof(float)));
  }

  absl::Status set_state(int vector, size_t offset, absl::Span<const float> values) override {
    GRADRAIL_CHECK(offset + values.size() <= count_);
    if (values.empty()) return absl::OkStatus();
    device_->upload(state_[vector]->as<float>() + offset, values.data(), values.size() * sizeof(float));
    return finish();
  }

 private:
  absl::StatusOr<MemorySpan> reachable_by_nics(NicGpuTransfer way, MemorySpan memory) {
    std::unique_ptr<GpuMemorySource>& source = sources_[static_cast<size_t>(way)];
    if (source == nullptr) {  // created on first use: a driver without this way fails only when a transport requests it
      GRADRAIL_ASSIGN_OR_RETURN(source, gpu::source_for_nics(*device_, way));
    }
    GRADRAIL_RETURN_IF_ERROR(gpu::prepare_for_peers(*device_, memory.data));
    memory.gpu = source.get();
    return memory;
  }

  absl::Status allocate(std::unique_ptr<gpu::Memory>& memory, size_t bytes) {
    GRADRAIL_ASSIGN_OR_RETURN(memory, device_->allocate(std::max<size_t>(bytes, 1)));
    return absl::OkStatus();
  }

  absl::Status finish() { return keep(device_->finish()); }
  absl::Status wait(gpu::CopyTicket ticket) { return keep(device_->wait(ticket)); }

  /// The device gives the error of an update to the next call that waits, which may be one for another worker. The
  /// parameters are lost nevertheless.
  absl::Status keep(const absl::Status& ended) {
    failure_.Update(ended);
    return failure_;
  }

  /// A sum of one gradient is a copy between any two places that the device reaches.
  void copy(const float* source, size_t count, float* target) {
    device_->sum(absl::MakeConstSpan(&source, 1), count, 1.0f, target);
  }

  absl::Status reserve(std::unique_ptr<gpu::Memory>& memory, size_t bytes) {
    if (memory != nullptr && memory->bytes() >= bytes) return absl::OkStatus();
    // A kernel may still read the former memory.
    GRADRAIL_RETURN_IF_ERROR(finish());
    return allocate(memory, bytes);
  }

  /// Replaces sources that the device cannot read by copies in its memory.
  absl::Status fetch(size_t bytes, absl::Span<const float*> sources) {
    // The vector keeps its memory from update to update: an allocation on a GPU synchronizes the device.
    if (fetched_.size() < sources.size()) fetched_.resize(sources.size());
    for (size_t i = 0; i < sources.size(); ++i) {
      if (reachable_->holds(sources[i], bytes)) continue;
      GRADRAIL_RETURN_IF_ERROR(reserve(fetched_[i], bytes));
      device_->upload(fetched_[i]->data(), sources[i], bytes);
      sources[i] = fetched_[i]->as<float>();
    }
    return absl::OkStatus();
  }

  /// Sums in order. A kernel takes at most kMaxBuffers: several sums, one after the other, keep the order and therefore
  /// the bits.
  absl::Status sum_in_order(absl::Span<const float* const> sources, size_t count, float scale) {
    GRADRAIL_RETURN_IF_ERROR(reserve(sum_, count * sizeof(float)));
    size_t taken = 0;
    while (taken < sources.size()) {
      absl::InlinedVector<const float*, gpu::kMaxBuffers> some;
      if (taken > 0) some.push_back(sum_->as<float>());
      while (taken < sources.size() && some.size() < gpu::kMaxBuffers) some.push_back(sources[taken++]);
      device_->sum(some, count, taken == sources.size() ? scale : 1.0f, sum_->as<float>());
    }
    return absl::OkStatus();
  }

  /// The same for packed gradients. A sum takes fp32 only: each gradient is widened in turn, which needs one buffer.
  absl::Status sum_widened_in_order(absl::Span<const float* const> sources, size_t count, float scale,
                                    PushFormat format) {
    for (std::unique_ptr<gpu::Memory>* memory : {&sum_, &widened_})
      GRADRAIL_RETURN_IF_ERROR(reserve(*memory, count * sizeof(float)));
    const auto widen = [&](size_t source, const gpu::Memory& to) {
      const void* const gradient = sources[source];
      device_->update({.rule = gpu::UpdateRule::mean,
                       .count = count,
                       .parameters = to.as<float>(),
                       .gradients = absl::MakeConstSpan(&gradient, 1),
                       .format = gpu_format(format)});
    };
    widen(0, *sum_);
    const float* const both[] = {sum_->as<float>(), widened_->as<float>()};
    for (size_t i = 1; i < sources.size(); ++i) {
      widen(i, *widened_);
      device_->sum(both, count, i + 1 == sources.size() ? scale : 1.0f, sum_->as<float>());
    }
    return absl::OkStatus();
  }

  void launch(size_t offset, size_t count, absl::Span<const float* const> sources, absl::Span<float* const> targets,
              float scale, Step step) {
    // The same rounding as the kernels of the CPU: both must give equal bits.
    const KernelArguments values = kernel_arguments(
        optimizer_,
        {.count = count, .gradients = sources, .targets = targets, .update_index = step.index, .rate = step.rate});
    const absl::InlinedVector<const void*, kUsualBuffers> gradients(sources.begin(), sources.end());
    const auto state = [&](int i) { return state_[i] == nullptr ? nullptr : state_[i]->as<float>() + offset; };
    device_->update({.rule = rule_of(optimizer_, step.index),
                     .count = count,
                     .parameters = on_device_->as<float>() + offset,
                     .state = {state(0), state(1)},
                     .gradients = gradients,
                     .format = gpu_format(step.format),
                     .targets = targets,
                     .gradient_scale = scale,
                     .rate = values.rate,
                     .momentum = values.momentum,
                     .momentum_share = values.momentum_share,
                     .beta1 = values.beta1,
                     .one_minus_beta1 = values.one_minus_beta1,
                     .beta2 = values.beta2,
                     .one_minus_beta2 = values.one_minus_beta2,
                     .epsilon = values.epsilon,
                     .decays = values.decays,
                     .decay = values.decay,
                     .shrink = values.shrink});
  }

  // Destroyed bottom up: pins and memory end before the device.
  const SharedMemory memory_;
  std::unique_ptr<gpu::Compute> device_;
  std::unique_ptr<GpuMemorySource> sources_[2];  // indexed by NicGpuTransfer, created on first use
  std::shared_ptr<ReachableMemory> reachable_;   // shared with the handles that pin() returned
  std::unique_ptr<gpu::Memory> on_device_;
  std::unique_ptr<gpu::Memory> state_[2];
  std::vector<std::unique_ptr<gpu::Memory>> fetched_;
  std::unique_ptr<gpu::Memory> sum_, widened_;
  ChangedRuns changed_;                           // runs changed on the device since the host copy was downloaded
  std::optional<gpu::CopyTicket> last_download_;  // may be under way
  gpu::WaitInTurns turns_;                        // turns since the last mark was reached
  absl::Status failure_;
  PinnedRange copy_pin_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ParameterStore>> make_device_store(std::unique_ptr<gpu::Compute> device,
                                                                  const OptimizerConfig& optimizer, size_t count,
                                                                  const MemoryBinder& place) {
  GRADRAIL_ASSIGN_OR_RETURN(SharedMemory memory, allocate_parameters(count, place));
  auto store = std::make_unique<DeviceStore>(std::move(device), optimizer, std::move(memory), count);
  GRADRAIL_RETURN_IF_ERROR(store->allocate());
  return store;
}

absl::StatusOr<std::optional<int>> device_ordinal(const std::string& device) {
  if (device == "host") return std::nullopt;
  const std::optional<uint32_t> number =
      device.starts_with(kGpuPrefix) ? parse_number<uint32_t>(std::string_view(device).substr(kGpuPrefix.size()))
                                     : std::nullopt;
  if (!number || *number > INT_MAX) {
    return absl::InvalidArgumentError(
        fmt::format("device '{}' for parameters: must be host or gpu:N, as in gpu:0", device));
  }
  return static_cast<int>(*number);
}

absl::StatusOr<StoreMaker> store_maker(const std::string& device) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::optional<int> gpu, device_ordinal(device));
  if (!gpu) return StoreMaker(make_host_store);
  const int ordinal = *gpu;
  // The check is at the start of the task: otherwise the first join would fail.
  if (const absl::Status opens = gpu::open_device(ordinal).status(); !opens.ok())
    return absl::Status(opens.code(), fmt::format("--ps_device {}: {}", device, message_of(opens)));
  return StoreMaker([ordinal](const OptimizerConfig& optimizer, size_t count,
                              const MemoryBinder& place) -> absl::StatusOr<std::unique_ptr<ParameterStore>> {
    GRADRAIL_ASSIGN_OR_RETURN(std::unique_ptr<gpu::Compute> opened, gpu::open_device(ordinal));
    return make_device_store(std::move(opened), optimizer, count, place);
  });
}

}  // namespace gradrail::ps
