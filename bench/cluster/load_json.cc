#include "bench/cluster/load_json.h"

#include "nlohmann/json.hpp"

namespace gradrail::bench {

nlohmann::json to_json(const ExchangeLoad& load) {
  nlohmann::json layers = nlohmann::json::array();
  for (const ExchangeLoad::Layer& layer : load.layers) layers.push_back({layer.elements, layer.ready_us});
  return {{"transport", load.transport},
          {"ofi_provider", load.ofi_provider},
          {"rdma_only", load.rdma_only},
          {"encrypted", load.encrypted},
          {"bind_host", load.bind_host},
          {"gpu", load.gpu},
          // Enumerations travel as numbers: RankCoordinator admits ranks of the same build only.
          {"gpu_transfer", static_cast<int>(load.gpu_transfer)},
          {"ps_device", load.ps_device},
          {"bytes", load.bytes},
          {"workers", load.workers},
          {"shards", load.shards},
          {"servers", load.servers},
          {"mode", static_cast<int>(load.mode.kind)},
          {"mode_bound", load.mode.bound},
          {"optimizer", static_cast<int>(load.optimizer)},
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
          {"layers", layers}};
}

ExchangeLoad load_from(const nlohmann::json& json) {
  ExchangeLoad load{.transport = json.at("transport"),
                    .ofi_provider = json.at("ofi_provider"),
                    .rdma_only = json.at("rdma_only"),
                    .encrypted = json.at("encrypted"),
                    .bind_host = json.at("bind_host"),
                    .gpu = json.at("gpu"),
                    .gpu_transfer = static_cast<worker::GpuTransfer>(json.at("gpu_transfer").get<int>()),
                    .ps_device = json.at("ps_device"),
                    .bytes = json.at("bytes"),
                    .workers = json.at("workers"),
                    .shards = json.at("shards"),
                    .servers = json.at("servers"),
                    .mode = {.kind = static_cast<ps::ModeKind>(json.at("mode").get<int>()),
                             .bound = json.at("mode_bound").get<uint32_t>()},
                    .optimizer = static_cast<ps::OptimizerKind>(json.at("optimizer").get<int>()),
                    .bucket_bytes = json.at("bucket_bytes"),
                    .touch = json.at("touch"),
                    .block = json.at("block"),
                    .check = json.at("check"),
                    .stages = json.at("stages"),
                    .ablation = {json.at("no_sum"), json.at("no_optimizer"), json.at("no_return")},
                    .seconds = json.at("seconds"),
                    .iterations = json.at("iterations"),
                    .warmup = json.at("warmup")};
  for (const nlohmann::json& layer : json.at("layers")) load.layers.push_back({layer.at(0), layer.at(1)});
  return load;
}

}  // namespace gradrail::bench
