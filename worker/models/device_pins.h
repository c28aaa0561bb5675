#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "gpu/compute/compute.h"

namespace gradrail::worker {

/// Host memory that a device reads and writes by DMA, pinned at its first use. It connects variables, which have no
/// reference to a device, with copies at full speed.
/// Threads  Owner of the Compute.
class DevicePins {
 public:
  /// Spans that follow each other are pinned as one run. Refused memory is left as it is, and not tried again.
  template <typename T>
  void cover_all(gpu::Compute& device, absl::Span<const absl::Span<T>> spans) {
    const void* first = spans.empty() ? nullptr : spans.front().data();
    if (is_covered(first)) return;
    std::vector<Run> runs;
    for (const absl::Span<T>& span : spans) append(runs, {to_bytes(span.data()), span.size() * sizeof(T)});
    for (const Run& run : runs) pin(device, run);
  }
  template <typename T>
  void cover(gpu::Compute& device, absl::Span<T> span) {
    cover_all(device, absl::MakeConstSpan(&span, 1));
  }
  void clear() { pinned_.clear(); }

 private:
  struct Run {
    std::byte* data;
    size_t bytes;
    std::unique_ptr<gpu::Pin> pin = nullptr;
  };

  static std::byte* to_bytes(const void* data) { return static_cast<std::byte*>(const_cast<void*>(data)); }
  bool is_covered(const void* data) const;
  static void append(std::vector<Run>& runs, Run more);
  void pin(gpu::Compute& device, const Run& run);

  std::vector<Run> pinned_;
  bool refused_ = false;
};

}  // namespace gradrail::worker
