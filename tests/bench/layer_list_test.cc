#include "bench/suites/layer_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "tests/ps/checkpoint/checkpoint_files.h"

namespace gradrail::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

absl::StatusOr<LayerList> layers_from(const std::string& content) {
  // Tests of one program run at the same time, each in a process.
  static const ps::TemporaryFolder folder;
  const std::string path = folder.file("layer_list_test.json");
  std::ofstream(path, std::ios::binary) << content;
  return read_layer_list(path);
}

/// [elements, microseconds]
std::vector<std::pair<uint64_t, double>> layers_in(const std::string& content) {
  const absl::StatusOr<LayerList> list = layers_from(content);
  EXPECT_TRUE(list.ok()) << list.status();
  std::vector<std::pair<uint64_t, double>> layers;
  if (list.ok())
    for (const ExchangeLoad::Layer& layer : list->layers) layers.emplace_back(layer.elements, layer.ready_us);
  return layers;
}

std::string step_event(int number, double start_us, double duration_us,
                       const std::string& category = "user_annotation") {
  return R"({"ph": "X", "cat": ")" + category + R"(", "name": "ProfilerStep#)" + std::to_string(number) +
         R"(", "ts": )" + std::to_string(start_us) + R"(, "dur": )" + std::to_string(duration_us) + "}";
}

std::string collective_event(const std::string& category, const std::string& name, const std::string& collective,
                             uint64_t elements, double start_us) {
  return R"({"ph": "X", "cat": ")" + category + R"(", "name": ")" + name +
         R"(", "pid": 1, "tid": 2, "dur": 5, "ts": )" + std::to_string(start_us) +
         R"(, "args": {"Collective name": ")" + collective + R"(", "In msg nelems": )" + std::to_string(elements) +
         R"(, "dtype": "Float", "Group size": 2}})";
}

std::string kineto(const std::vector<std::string>& events) {
  std::string text = R"({"schemaVersion": 1, "deviceProperties": [], "displayTimeUnit": "ms", "traceEvents": [)";
  for (const std::string& event : events) text += event + ",\n";
  return text + R"({"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}], "traceName": "a"})";
}

TEST(KinetoTrace, TheStepWithTheMedianDurationIsReplayed) {
  const std::string trace =
      kineto({step_event(1, 0, 900), step_event(2, 1000, 500), step_event(3, 2000, 600), step_event(4, 3000, 10),
              collective_event("cpu_op", "record_param_comms", "allreduce", 7, 5),
              collective_event("cpu_op", "record_param_comms", "allreduce", 100, 1400),
              collective_event("cpu_op", "record_param_comms", "allreduce", 300, 2450),
              collective_event("cpu_op", "record_param_comms", "_reduce_scatter_base", 200, 2400),
              collective_event("cpu_op", "record_param_comms", "broadcast", 900, 2001)});
  EXPECT_THAT(layers_in(trace), ElementsAre(Pair(200, 400), Pair(300, 450)));
  EXPECT_EQ(layers_from(trace)->about, "Kineto trace: ProfilerStep#3, the median of 3 steps with reductions");
}

TEST(KinetoTrace, KernelsCountInsteadOfTheirCalls) {
  const std::string trace =
      kineto({step_event(1, 0, 100), step_event(1, 500, 400, "gpu_user_annotation"),
              collective_event("cpu_op", "record_param_comms", "allreduce", 64, 20),
              R"({"ph": "X", "cat": "user_annotation", "name": "nccl:all_reduce", "ts": 19, "dur": 3,
                  "args": {"Input Dims": [[64]]}})",
              R"({"ph": "X", "cat": "gpu_user_annotation", "name": "nccl:all_reduce", "ts": 700, "dur": 3})",
              collective_event("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "allreduce", 64, 700)});
  EXPECT_THAT(layers_in(trace), ElementsAre(Pair(64, 200)));
}

TEST(KinetoTrace, CallsHaveTheirSizesFromTheirShapes) {
  // A list of events alone, and no steps.
  EXPECT_THAT(layers_in(R"([{"ph": "X", "name": "aten::mm", "ts": 10, "dur": 2},
                            {"ph": "X", "name": "gloo:all_reduce", "ts": 40, "dur": 9, "args": {"Input Dims": [[2, 3]]}},
                            {"ph": "X", "name": "gloo:all_reduce", "ts": 30, "dur": 9,
                             "args": {"Input Dims": [[[5], [6]], []]}}])"),
              ElementsAre(Pair(11, 20), Pair(6, 30)));
}

TEST(ChakraTrace, StartTimesTellWhenAReductionIsReady) {
  const std::string trace = R"({"version": "0.0.4"}{"name": "root", "type": "METADATA_NODE"}
{"id": "1", "type": "COMP_NODE", "startTimeMicros": "5000", "durationMicros": "40"}
{"id": "3", "type": "COMM_COLL_NODE", "startTimeMicros": "5100", "durationMicros": "9",
 "attr": [{"name": "is_cpu_op", "boolVal": false}, {"name": "comm_type", "int64Val": "0"},
          {"name": "comm_size", "int64Val": "4096"}]}
{"id": "2", "type": "COMM_COLL_NODE", "startTimeMicros": "5050",
 "attr": [{"name": "comm_type", "stringVal": "REDUCE_SCATTER"}, {"name": "comm_size", "uint64Val": "10"}]}
{"id": "4", "type": "COMM_COLL_NODE", "startTimeMicros": "5051",
 "attr": [{"name": "comm_type", "int64Val": "5"}, {"name": "comm_size", "int64Val": "64"}]})";
  EXPECT_THAT(layers_in(trace), ElementsAre(Pair(3, 50), Pair(1024, 100)));
  EXPECT_EQ(layers_from(trace)->about, "Chakra trace, by its start times");
}

TEST(ChakraTrace, WithoutStartTimesDependenciesDo) {
  const auto reduction = [](const std::string& id, const std::string& dependencies) {
    return R"({"id": ")" + id + R"(", "type": "COMM_COLL_NODE", "durationMicros": "1000", "dataDeps": [)" +
           dependencies + R"(], "attr": [{"name": "comm_type", "int64Val": "0"}, {"name": "comm_size", "int64Val": ")" +
           id + R"(00"}]})";
  };
  const std::string trace = std::string("{}") + R"({"id": "1", "type": "COMP_NODE", "durationMicros": "70"})" +
                            R"({"id": "2", "type": "COMP_NODE", "durationMicros": "30", "dataDeps": ["1"]})" +
                            R"({"id": "3", "type": "COMP_NODE", "durationMicros": "10", "ctrlDeps": ["1", "99"]})" +
                            reduction("8", R"("2", "3")") + reduction("4", R"("3")") + reduction("6", R"("8")");
  // The reduction before another one takes no time.
  EXPECT_THAT(layers_in(trace), ElementsAre(Pair(100, 80), Pair(150, 100), Pair(200, 100)));
}

TEST(Traces, UnusableOnesAreRefusedWithWhatTheyHave) {
  const std::string reduction =
      R"("type": "COMM_COLL_NODE", "attr": [{"name": "comm_type", "int64Val": "0"}, {"name": "comm_size", "int64Val": "4"}])";
  for (const auto& [content, words] : std::vector<std::pair<std::string, std::string>>{
           {"{", "parse error at line 1"},
           {R"({"traceEvents": [)", "parse error at line 1"},
           {kineto({}), "found 0 events, 0 steps, no collective"},
           {kineto({step_event(1, 0, 9), collective_event("cpu_op", "record_param_comms", "broadcast", 8, 1)}),
            "found 2 events, 1 steps, collectives broadcast"},
           {kineto({R"({"ph": "X", "name": "gloo:all_reduce", "ts": 1, "dur": 2, "args": {}})"}),
            "1 reductions, none with a size (In msg nelems or Input Dims): record it with profile(record_shapes=True)"},
           {kineto({step_event(1, 0, 9), collective_event("cpu_op", "record_param_comms", "allreduce", 8, 10)}),
            "all outside of its 1 steps"},
           {kineto({step_event(1, 0, 1e9), collective_event("cpu_op", "record_param_comms", "allreduce", 8, 7e7)}),
            "a reduction begins after 70 s"},
           {R"({"schema": "1.1.0", "nodes": []})", "an execution trace of PyTorch: convert it with chakra_trace_link"},
           {"{} 3", "neither a Kineto nor a Chakra trace"},
           {R"({}{"id": "1", "type": "COMP_NODE"})", "found 1 nodes, no other collective"},
           {R"({}{"id": "1", "type": "COMM_COLL_NODE", "attr": [{"name": "comm_type", "int64Val": "2"}]})",
            "found 1 nodes, comm_type \"2\""},
           {R"({"id": "1", "dataDeps": ["2"], )" + reduction + R"(}{"id": "2", "dataDeps": ["1"], )" + reduction + "}",
            "dependencies in a circle"},
           {"\x1f\x8b\x08", "decompress it with gzip -d"},
           {"\x07\x0a\x05"
            "0.0.4",
            "convert a Chakra trace with chakra_jsonizer"}}) {
    SCOPED_TRACE(content);
    const absl::StatusOr<LayerList> list = layers_from(content);
    EXPECT_TRUE(absl::IsDataLoss(list.status())) << list.status();
    EXPECT_THAT(message_of(list.status()), HasSubstr(words));
    EXPECT_THAT(message_of(list.status()), HasSubstr("layer_list_test.json: "));
  }
}

}  // namespace
}  // namespace gradrail::bench
