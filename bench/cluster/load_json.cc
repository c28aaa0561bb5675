#include "bench/cluster/load_json.h"

#include <cstdint>
#include <limits>
#include <stdexcept>

#include "fmt/format.h"
#include "gradrail/cluster.h"
#include "nlohmann/json.hpp"

namespace gradrail::bench {
namespace {

/// Reads a whole number up to `most`; the form of json.at(). An exception for 1e300: its conversion is undefined.
template <typename Number>
Number whole(const nlohmann::json& json, const char* name, Number most = std::numeric_limits<Number>::max()) {
  const int64_t value = json.at(name).get_ref<const nlohmann::json::number_integer_t&>();
  if (std::in_range<Number>(value) && static_cast<Number>(value) <= most) return static_cast<Number>(value);
  throw std::out_of_range(fmt::format("{}: {} is not from 0 to {}", name, value, most));
}

/// An enumeration that begins with 0 and ends with `last`.
template <typename Enum>
Enum one_of(const nlohmann::json& json, const char* name, Enum last) {
  return static_cast<Enum>(whole(json, name, static_cast<uint32_t>(last)));
}

/// Reads a value that travels as text, because some values have parameters.
template <typename Value>
Value parsed(const nlohmann::json& json, const char* name, absl::StatusOr<Value> (*parse)(std::string_view)) {
  const absl::StatusOr<Value> value = parse(json.at(name).get_ref<const std::string&>());
  if (value.ok()) return *value;
  throw std::out_of_range(std::string(value.status().message()));
}

/// Reads a traffic matrix. The index of a worker selects its row.
TrafficMatrix traffic_of(const nlohmann::json& json, uint32_t workers) {
  TrafficMatrix matrix;
  for (const nlohmann::json& row : json.at("traffic")) {
    std::vector<uint64_t>& entries = matrix.emplace_back();
    for (const nlohmann::json& bytes : row)
      entries.push_back(bytes.get_ref<const nlohmann::json::number_unsigned_t&>());
    if (entries.empty() || entries.size() != matrix.front().size()) throw std::out_of_range("traffic: uneven rows");
  }
  if (matrix.empty() || matrix.size() == workers) return matrix;
  throw std::out_of_range(fmt::format("traffic: {} rows for {} workers", matrix.size(), workers));
}

}  // namespace

nlohmann::json to_json(const ExchangeLoad& load) {
  nlohmann::json layers = nlohmann::json::array();
  for (const ExchangeLoad::Layer& layer : load.layers) layers.push_back({layer.elements, layer.ready_us});
  return {{"transport", load.transport},
          {"ofi_provider", load.ofi_provider},
          {"rdma_only", load.rdma_only},
          {"encrypted", load.encrypted},
          {"bind_host", load.bind_host},
          {"rails", load.rails},
          {"streams", load.streams},
          {"gpu", load.gpu},
          // Enumerations travel as numbers: RankCoordinator admits ranks of the same build only.
          {"gpu_transfer", static_cast<int>(load.gpu_transfer)},
          {"ps_device", load.ps_device},
          {"bytes", load.bytes},
          {"workers", load.workers},
          {"shards", load.shards},
          {"servers", load.servers},
          {"mode", mode_text(load.mode)},
          {"optimizer", static_cast<int>(load.optimizer)},
          {"push", push_format_name(load.push)},
          {"returns", static_cast<int>(load.returns)},
          {"bucket_bytes", load.bucket_bytes},
          {"touch", load.touch},
          {"block", load.block},
          {"check", load.check},
          {"stages", load.stages},
          {"no_sum", load.ablation.no_sum},
          {"no_optimizer", load.ablation.no_optimizer},
          {"no_return", load.ablation.no_return},
          {"seconds", load.seconds},
          {"iterations", load.iterations},
          {"warmup", load.warmup},
          {"layers", layers},
          {"traffic", load.traffic}};
}

ExchangeLoad load_from(const nlohmann::json& json) {
  ExchangeLoad load{.transport = json.at("transport"),
                    .ofi_provider = json.at("ofi_provider"),
                    .rdma_only = json.at("rdma_only"),
                    .encrypted = json.at("encrypted"),
                    .bind_host = json.at("bind_host"),
                    .rails = json.at("rails"),
                    .streams = whole<uint32_t>(json, "streams"),
                    .gpu = json.at("gpu"),
                    .gpu_transfer = one_of(json, "gpu_transfer", GpuTransfer::staged),
                    .ps_device = json.at("ps_device"),
                    .bytes = whole<uint64_t>(json, "bytes"),
                    .workers = whole(json, "workers", kMaxWorkers),
                    .shards = whole(json, "shards", kMaxShards),
                    .servers = json.at("servers"),
                    .mode = parsed<Mode>(json, "mode", parse_mode),
                    .optimizer = one_of(json, "optimizer", OptimizerKind::adam),
                    .push = parsed<PushFormat>(json, "push", parse_push_format),
                    .returns = one_of(json, "returns", ReturnFormat::delta),
                    .bucket_bytes = whole<uint32_t>(json, "bucket_bytes"),
                    .touch = json.at("touch"),
                    .block = json.at("block"),
                    .check = json.at("check"),
                    .stages = json.at("stages"),
                    .ablation = {json.at("no_sum"), json.at("no_optimizer"), json.at("no_return")},
                    .seconds = json.at("seconds"),
                    .iterations = whole<uint64_t>(json, "iterations"),
                    .warmup = whole<uint64_t>(json, "warmup")};
  for (const nlohmann::json& layer : json.at("layers"))
    load.layers.push_back({layer.at(0).get_ref<const nlohmann::json::number_unsigned_t&>(), layer.at(1)});
  load.traffic = traffic_of(json, load.workers);
  return load;
}

}  // namespace gradrail::bench
