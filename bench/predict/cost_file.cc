#include "bench/predict/cost_file.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/status.h"
#include "bench/report/figure.h"
#include "bench/report/run_file.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace gradrail::bench::predict {
namespace {

/// Larger exchanges leave the caches, smaller ones are wake-ups and system calls.
constexpr uint64_t kBytesOfSlope = 1 << 20;

using Rows = std::vector<Figure>;

/// The row of the largest size.
const Figure* largest(const Rows& rows, const std::string& path) {
  const Figure* found = nullptr;
  for (const Figure& row : rows) {
    if (row.path == path && (found == nullptr || row.bytes > found->bytes)) found = &row;
  }
  return found;
}

double ns_per_byte(const Figure& row) { return row.times.p50_us * 1e3 / static_cast<double>(row.bytes); }

bool read_apply(const Rows& rows, const std::string& optimizer, PushFormat push, Costs& costs) {
  const std::string format = push_format_name(push);
  const Figure* const one = largest(rows, fmt::format("{}, 1 gradient {}, 0 targets", optimizer, format));
  const Figure* const four = largest(rows, fmt::format("{}, 4 gradients {}, 0 targets", optimizer, format));
  const Figure* const sgd_one = largest(rows, fmt::format("sgd, 1 gradient {}, 0 targets", format));
  const Figure* const sgd_four = largest(rows, fmt::format("sgd, 4 gradients {}, 0 targets", format));
  if (one == nullptr || sgd_one == nullptr || sgd_four == nullptr) return false;
  // The sum costs each optimizer the same; `apply` has four gradients and no target for sgd.
  const double more =
      four != nullptr ? ns_per_byte(*four) - ns_per_byte(*one) : ns_per_byte(*sgd_four) - ns_per_byte(*sgd_one);
  costs.gradient_ns_per_byte = std::max(0.0, more / 3);
  costs.apply_ns_per_byte = std::max(0.0, ns_per_byte(*one) - costs.gradient_ns_per_byte);
  const Figure* const pack = largest(rows, fmt::format("pack {}", format));
  if (pack != nullptr) costs.pack_ns_per_byte = ns_per_byte(*pack);
  return true;
}

/// False: no two sizes. Errors  DATA_LOSS: their times have no cost of a byte.
absl::StatusOr<bool> read_exchange(const Rows& rows, Costs& costs) {
  const Figure* least = nullptr;
  const Figure* most = nullptr;
  for (const Figure& row : rows) {
    if (row.path != "tcp" || row.bytes > kBytesOfSlope) continue;
    if (least == nullptr || row.bytes < least->bytes) least = &row;
    if (most == nullptr || row.bytes > most->bytes) most = &row;
  }
  if (least == nullptr || least == most) return false;
  if (most->times.p50_us <= least->times.p50_us) {
    return absl::DataLossError(
        fmt::format("{} bytes over tcp took {:.2f} us and {} bytes {:.2f} us, so that a byte has no cost; measure "
                    "again, with sizes from 64 to 1M",
                    least->bytes, least->times.p50_us, most->bytes, most->times.p50_us));
  }
  // A round trip has two messages; each one costs its sender and its receiver. Both copy its bytes at the same time.
  costs.message_us = least->times.p50_us / 4;
  const double slope =
      (most->times.p50_us - least->times.p50_us) * 1e3 / static_cast<double>(most->bytes - least->bytes);
  costs.send_ns_per_byte = costs.receive_ns_per_byte = slope / 2;
  return true;
}

}  // namespace

Costs recorded_costs(PushFormat push) {
  Costs costs;
  costs.sources = {"messages, bytes: exchange-2026-11-21.txt, tcp on one host: 64 B in 11.5 us, 256 KiB in 101 us",
                   "apply: apply-2026-11-21.txt, sgd, 20 MB: 1 gradient 1568 us, 4 gradients 5998 us",
                   "packing: formats-2026-11-26.txt, 4 MiB",
                   "memory: 8 channels of DDR4-3200, 204.8 GB/s by specification; not measured"};
  switch (push.kind) {
    case PushFormat::fp32:
      break;
    case PushFormat::bf16:
      costs.pack_ns_per_byte = 0.108;
      break;
    case PushFormat::int8:
    case PushFormat::int4:
      costs.pack_ns_per_byte = 0.126;
      break;
    case PushFormat::topk:
      costs.pack_ns_per_byte = push.thousandths <= 10 ? 0.279 : 0.383;
      break;
  }
  return costs;
}

absl::Status read_costs(const std::string& path, const std::string& optimizer, PushFormat push, Costs& costs) {
  GRADRAIL_ASSIGN_OR_RETURN(const nlohmann::json run, read_run(path));
  GRADRAIL_ASSIGN_OR_RETURN(Rows rows, figures_of(run, path));
  std::erase_if(rows, [](const Figure& row) { return !row.failed.empty() || row.times.p50_us <= 0 || row.bytes == 0; });
  const bool has_apply = read_apply(rows, optimizer, push, costs);
  const absl::StatusOr<bool> found = read_exchange(rows, costs);
  if (!found.ok()) return absl::DataLossError(fmt::format("{}: {}", path, message_of(found.status())));
  const bool has_exchange = *found;
  if (!has_apply && !has_exchange) {
    return absl::DataLossError(fmt::format(
        "{}: has neither rows of `bench apply` for {} and {}, nor two sizes up to 1M of `bench exchange` over tcp",
        path, optimizer, push_format_name(push)));
  }
  // The costs of this file replace those of earlier ones.
  const auto use = [&](std::string_view what) {
    std::erase_if(costs.sources, [&](const std::string& source) { return source.starts_with(what); });
    costs.sources.push_back(fmt::format("{}: {}", what, path));
  };
  if (has_apply) use("apply");
  if (has_apply && largest(rows, fmt::format("pack {}", push_format_name(push))) != nullptr) use("packing");
  if (has_exchange) use("messages, bytes");
  return absl::OkStatus();
}

}  // namespace gradrail::bench::predict
