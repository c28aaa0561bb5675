#include "bench/cluster/load_json.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include "nlohmann/json.hpp"

namespace gradrail::bench {
namespace {

TEST(LoadAsJson, NothingIsLost) {
  const ExchangeLoad load{.transport = "ofi",
                          .ofi_provider = "tcp",
                          .rdma_only = true,
                          .encrypted = true,
                          .bind_host = "10.0.0.1",
                          .rails = {"10.0.0.1", "10.1.0.1"},
                          .streams = 4,
                          .gpu = "gpu:1",
                          .gpu_transfer = GpuTransfer::ipc,
                          .ps_device = "gpu:0",
                          .bytes = 318040,
                          .workers = 3,
                          .shards = 2,
                          .servers = {"a:1", "b:2"},
                          .mode = {.kind = ModeKind::quorum, .bound = 3, .grace = {.seconds = 0.5}, .drops_late = true},
                          .optimizer = OptimizerKind::adam,
                          .push = {PushFormat::topk, 15},
                          .returns = ReturnFormat::delta,
                          .bucket_bytes = 4096,
                          .touch = true,
                          .block = true,
                          .check = false,
                          .stages = true,
                          .ablation = {.no_sum = true, .no_optimizer = true, .no_return = true},
                          .seconds = 0.25,
                          .iterations = 7,
                          .warmup = 2,
                          .layers = {{4, 1.5}, {8, 2.5}},
                          .traffic = {{256, 0}, {0, 512}, {256, 256}}};
  // Everything is in the text, and the text makes the same text again.
  const nlohmann::json json = to_json(load);
  EXPECT_EQ(to_json(load_from(nlohmann::json::parse(json.dump()))), json);
  const nlohmann::json others = to_json(ExchangeLoad{});
  for (const auto& [name, value] : json.items()) EXPECT_NE(value, others.at(name)) << name << " is not tested";
  EXPECT_EQ(load_from(json).push, load.push);
}

TEST(LoadAsJson, AnUnknownPushIsRefused) {
  nlohmann::json json = to_json(ExchangeLoad{});
  json["push"] = "topk:50";
  EXPECT_THROW(load_from(json), std::out_of_range);
  json["push"] = 5;
  EXPECT_THROW(load_from(json), std::exception);
}

TEST(LoadAsJson, AMatrixOfAnotherShapeIsRefused) {
  for (const char* text : {"[[1], [2]]", "[[1, 2], [3], [4, 5]]", "[[], [], []]", "[[1], [-1], [2]]", "5"}) {
    nlohmann::json json = to_json(ExchangeLoad{.workers = 3});
    json["traffic"] = nlohmann::json::parse(text);
    EXPECT_THROW(load_from(json), std::exception) << text;
  }
}

TEST(LoadAsJson, AValueOutsideOfItsRangeIsRefusedByName) {
  for (const auto& [name, value] : {std::pair<const char*, int64_t>{"gpu_transfer", 4},
                                    {"gpu_transfer", -1},
                                    {"optimizer", 4},
                                    {"optimizer", 256},
                                    {"returns", 3},
                                    {"workers", 1'000'000},
                                    {"shards", 65},
                                    {"bucket_bytes", 1LL << 32},
                                    {"bytes", -1}}) {
    nlohmann::json json = to_json(ExchangeLoad{});
    json[name] = value;
    try {
      load_from(json);
      ADD_FAILURE() << name << " " << value;
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find(std::string(name) + ": " + std::to_string(value)), std::string::npos)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace gradrail::bench
