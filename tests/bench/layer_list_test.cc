#include "bench/suites/layer_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/status.h"
#include "bench/layers/traffic_matrix.h"
#include "tests/ps/checkpoint/checkpoint_files.h"
#include "tests/worker/data/idx_files.h"

namespace gradrail::bench {
namespace {

using ::testing::AllOf;
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

TEST(KinetoTrace, TasksHaveTheirSizesFromTheirShapes) {
  // A list of events alone, and no steps.
  EXPECT_THAT(layers_in(R"([{"ph": "X", "name": "aten::mm", "ts": 10, "dur": 2},
                            {"ph": "X", "name": "gloo:all_reduce", "ts": 40, "dur": 9, "args": {"Input Dims": [[2, 3]]}},
                            {"ph": "X", "name": "gloo:all_reduce", "ts": 30, "dur": 9,
                             "args": {"Input Dims": [[5], [6]]}}])"),
              ElementsAre(Pair(11, 20), Pair(6, 30)));
}

std::string shaped_event(const std::string& category, const std::string& name, const std::string& dims,
                         double start_us) {
  return R"({"ph": "X", "cat": ")" + category + R"(", "name": ")" + name + R"(", "pid": 30424, "tid": 30431, "ts": )" +
         std::to_string(start_us) +
         R"(, "dur": 9.4, "args": {"External id": 1, "Input type": ["TensorList"], "Input Dims": )" + dims + "}}";
}

// Gloo runs few tasks at a time: the second one begins later than its gradient is ready. As PyTorch 2.15 writes it.
TEST(KinetoTrace, CallsCountInsteadOfTheirTasks) {
  const std::string trace = kineto(
      {step_event(2, 100, 500), shaped_event("cpu_op", "c10d::allreduce_", "[[[1059850]], [], [], [], [], []]", 300.5),
       shaped_event("cpu_op", "c10d::allreduce_", "[[[20, 10], []], [], [], [], [], []]", 340),
       shaped_event("cpu_op", "c10d::_reduce_scatter_base_", "[[8, 4], [64, 4], [], [], []]", 350),
       shaped_event("cpu_op", "c10d::_allgather_base_", "[[64, 4], [8, 4], [], [], []]", 360),
       shaped_event("user_annotation", "gloo:all_reduce", "[[1059850]]", 310),
       shaped_event("user_annotation", "gloo:all_reduce", "[[200], []]", 420)});
  EXPECT_THAT(layers_in(trace), ElementsAre(Pair(1059850, 200.5), Pair(201, 240), Pair(256, 250)));
}

// As PyTorch of 2023 writes it: no shapes for a list of tensors.
TEST(KinetoTrace, TasksCountIfSomeCallsHaveNoShapes) {
  const std::string trace =
      kineto({step_event(550, 0, 900),
              shaped_event("cpu_op", "c10d::_reduce_scatter_base_", "[[8, 4], [64, 4], [], [], []]", 20),
              shaped_event("user_annotation", "nccl:_reduce_scatter_base", "[[64, 4]]", 21),
              shaped_event("cpu_op", "c10d::allreduce_", "[[], [], [], []]", 30),
              shaped_event("user_annotation", "nccl:all_reduce", "[[366336]]", 31)});
  EXPECT_THAT(layers_in(trace), ElementsAre(Pair(256, 21), Pair(366336, 31)));
}

// A node comes behind its children.
TEST(ExecutionTrace, TheMiddleStepIsReplayedWithoutTimes) {
  const auto node = [](int id, const std::string& name, const std::string& shapes) {
    return R"({"id": )" + std::to_string(id) + R"(, "name": ")" + name +
           R"(", "ctrl_deps": 2, "inputs": {"values": [], "shapes": )" + shapes +
           R"(, "types": ["GenericList[Tensor(float)]"]}, "outputs": {"values": [], "shapes": [], "types": []},
           "attrs": [{"name": "rf_id", "type": "uint64", "value": 115}]})";
  };
  const std::string trace =
      "{\n  \"schema\": \"1.1.1-chakra.0.0.4\", \"pid\": 177708, \"start_ts\": 387251586,\n  \"nodes\": [" +
      node(10, "c10d::allreduce_", "[[[7]], [], [], [], []]") + "," + node(3, "ProfilerStep#5", "[]") + "," +
      node(50, "c10d::allreduce_", "[[[2431040]], [], [], [], []]") + "," +
      node(42, "c10d::broadcast_", "[[[53120]], [], [], [], []]") + "," +
      node(45, "c10d::allreduce_", "[[[64, 7], [64]], [], [], [], []]") + "," + node(40, "ProfilerStep#6", "[]") + "," +
      node(60, "ProfilerStep#7", "[]") + R"(], "finish_ts": 387307139})";
  EXPECT_THAT(layers_in(trace), ElementsAre(Pair(512, 0), Pair(2431040, 0)));
  EXPECT_THAT(layers_from(trace)->about,
              HasSubstr("ProfilerStep#6, the middle of 2 steps with reductions; without times"));
}

TEST(ExecutionTrace, TheFirstSchemaIsReadToo) {
  const std::string trace = R"({"schema": "1.0.1", "pid": 59811, "start_ts": 6672645, "nodes": [
      {"name": "c10d::allreduce_", "id": 1245, "rf_id": 902, "parent": 1237, "inputs": [[[1244, 1156, 0, 394241, 4, "cuda:0"]], -1],
       "input_shapes": [[[394241]], [], [], []], "input_types": ["GenericList[Tensor(float)]"], "output_shapes": []},
      {"name": "c10d::_reduce_scatter_base_", "id": 1300, "inputs": [], "input_shapes": [[8, 4], [64, 4], [], [], []]}],
      "finish_ts": 6674697})";
  EXPECT_THAT(layers_in(trace), ElementsAre(Pair(394241, 0), Pair(256, 0)));
}

// The nodes of another schema may look damaged: the schema is the error.
TEST(ExecutionTrace, AnotherSchemaIsAnError) {
  const auto trace = [](const std::string& schema, const std::string& shapes = "[[[4]], []]") {
    return R"({"schema": )" + schema + R"(, "pid": 1, "nodes": [
               {"id": 1, "name": "c10d::allreduce_", "inputs": {"shapes": )" +
           shapes + "}}]}";
  };
  for (const std::string schema : {R"("1.0.0")", R"("1.0.3-chakra.0.0.4")", R"("1.1")", R"("1.1.2")"})
    EXPECT_THAT(layers_in(trace(schema)), ElementsAre(Pair(4, 0))) << schema;
  for (const std::string schema :
       {R"("9.9")", R"("1.2.0-chakra.0.0.4")", R"("2.0.1")", R"("1.10.0")", R"("")", "1.1"}) {
    SCOPED_TRACE(schema);
    for (const std::string shapes : {"[[[4]], []]", R"([["4"], []])"}) {
      const absl::Status status = layers_from(trace(schema, shapes)).status();
      EXPECT_TRUE(absl::IsDataLoss(status)) << status;
      EXPECT_THAT(message_of(status),
                  AllOf(HasSubstr("layer_list_test.json: an execution trace of PyTorch with schema " + schema),
                        HasSubstr("schemas 1.0 and 1.1 are read; record")));
    }
  }
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
                            R"({"id": "3", "type": "COMP_NODE", "durationMicros": "10", "dataDeps": ["1"]})" +
                            reduction("8", R"("2", "3")") + reduction("4", R"("3")") + reduction("6", R"("8")");
  // The reduction before another one takes no time.
  EXPECT_THAT(layers_in(trace), ElementsAre(Pair(100, 80), Pair(150, 100), Pair(200, 100)));
}

// The converter writes the caller of an operator as ctrlDeps. A caller waits for its last part: both lists are a
// circle. It also drops callers.
TEST(ChakraTrace, CallersAreNoDependencies) {
  const std::string trace = R"({"attr": [{"name": "schema", "stringVal": "1.0.1"}]}
{"id": "3254", "name": "c10d::allreduce_", "type": "COMM_COLL_NODE", "ctrlDeps": ["3255", 99], "durationMicros": "85",
 "attr": [{"name": "is_cpu_op", "boolVal": true}]}
{"id": "3255", "name": "c10d::allreduce_", "type": "COMM_COLL_NODE", "dataDeps": ["3254"], "durationMicros": "79"}
{"id": "3256", "name": "ncclKernel_AllReduce_RING_LL_Sum_float", "type": "COMM_COLL_NODE", "ctrlDeps": ["3255"], "dataDeps": ["3254"],
 "attr": [{"name": "comm_type", "int64Val": "0"}, {"name": "comm_size", "int64Val": "8196000"}]})";
  EXPECT_THAT(layers_in(trace), ElementsAre(Pair(2049000, 85)));
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
            "1 events of reductions, none with a size (In msg nelems or Input Dims): record it with "
            "profile(record_shapes="
            "True), in a PyTorch with torch.profiler.kineto_available()"},
           {kineto({step_event(1, 0, 9), collective_event("cpu_op", "record_param_comms", "allreduce", 8, 10)}),
            "all outside of its 1 steps"},
           {kineto({step_event(1, 0, 1e9), collective_event("cpu_op", "record_param_comms", "allreduce", 8, 7e7)}),
            "a reduction begins after 70 s"},
           {R"({"schema": "1.1.0", "nodes": [{"id": 1, "name": "c10d::allgather_", "inputs": {"shapes": []}}]})",
            "an execution trace of PyTorch without gradients: looked for c10d::allreduce_, c10d::reduce_ and "
            "c10d::…reduce_scatter… with shapes; found 1 nodes, collectives allgather_"},
           {R"({"schema": "1.1.0", "nodes": [)", "parse error at line 1"},
           {R"({"workload_graph": []})", "a workload graph of Chakra: convert the .et file of the same run"},
           {R"({}{"id": "1", "type": "COMP_NODE"})", "found 1 nodes, no other collective"},
           {R"({}{"id": "1", "type": "COMM_COLL_NODE", "attr": [{"name": "comm_type", "int64Val": "2"}]})",
            "found 1 nodes, comm_type \"2\""},
           {R"({"id": "1", "dataDeps": ["2"], )" + reduction + R"(}{"id": "2", "dataDeps": ["1"], )" + reduction + "}",
            "dependencies in a circle"},
           {"\x1f\x8b\x08", "gzip data that ends early"},
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

TEST(KinetoTrace, APackedTraceIsRead) {
  const std::string trace = kineto({collective_event("cpu_op", "record_param_comms", "allreduce", 8, 10)});
  const worker::Bytes packed = worker::gzip_bytes({trace.begin(), trace.end()});
  EXPECT_THAT(layers_in({packed.begin(), packed.end()}), ElementsAre(Pair(8, 0)));
}

std::string error_of_layers(const std::string& content) {
  const absl::Status status = layers_from(content).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(message_of(status), HasSubstr("layer_list_test.json: "));
  return std::string(message_of(status));
}

std::string with_field(const std::string& field, const std::string& value) {
  return R"({"ph": "X", "name": "gloo:all_reduce", "ts": 40, "args": {"Collective name": "allreduce", )" + field +
         ": " + value + "}}";
}

// One good reduction beside it does not hide it.
TEST(KinetoTrace, ADamagedSizeIsAnError) {
  const std::string good = collective_event("cpu_op", "record_param_comms", "allreduce", 8, 10);
  for (const std::string value :
       {R"("2000")", R"("abc")", "-5", "250000000001", "2.5", "null", "1000000000000000000000000000000000000000"}) {
    SCOPED_TRACE(value);
    EXPECT_THAT(error_of_layers(kineto({good, with_field(R"("In msg nelems")", value)})),
                AllOf(HasSubstr("event 2 of those with ph X (name \"gloo:all_reduce\", ts 40): In msg nelems is " +
                                (value.size() == 40 ? "1e+39" : value)),
                      HasSubstr("must be a whole number from 0 to 250000000000, without quotes; correct it")));
  }
  for (const std::string value : {R"([["2000"]])", "[[-5, 3]]", "[[500001, 500001]]", R"("abc")", "[[[[[1]]]]]"}) {
    SCOPED_TRACE(value);
    std::string compact = value;
    std::erase(compact, ' ');
    EXPECT_THAT(error_of_layers(kineto({good, shaped_event("cpu_op", "gloo:all_reduce", value, 40)})),
                HasSubstr("Input Dims is " + compact + ", and must be lists of numbers from 0 without quotes"));
  }
  EXPECT_THAT(error_of_layers(kineto({good, shaped_event("cpu_op", "c10d::allreduce_", R"([[["7"]], []])", 40)})),
              HasSubstr(R"((name "c10d::allreduce_", ts 40.0): Input Dims is [["7"]], and must)"));
}

TEST(KinetoTrace, EmptyTensorsAndOtherCollectivesAreNoMistakes) {
  EXPECT_THAT(
      layers_in(kineto({step_event(1, 0, 100), collective_event("cpu_op", "record_param_comms", "allreduce", 8, 10),
                        collective_event("cpu_op", "record_param_comms", "allreduce", 0, 20),
                        collective_event("cpu_op", "record_param_comms", "barrier", 0, 20),
                        R"({"ph": "X", "name": "record_param_comms", "ts": 3, "dur": 1,
                                    "args": {"Collective name": "wait", "In msg nelems": "none"}})",
                        shaped_event("cpu_op", "gloo:all_reduce", "[[0, 4]]", 30)})),
      ElementsAre(Pair(8, 10)));
  EXPECT_THAT(error_of_layers(kineto({collective_event("cpu_op", "record_param_comms", "allreduce", 0, 20)})),
              HasSubstr("1 events of reductions, all with In msg nelems 0"));
}

TEST(KinetoTrace, ADamagedTimeIsAnError) {
  const std::string reduction = collective_event("cpu_op", "record_param_comms", "allreduce", 8, 10);
  const auto step = [](const std::string& times) { return R"({"ph": "X", "name": "ProfilerStep#1")" + times + "}"; };
  for (const auto& [times, words] : std::vector<std::pair<std::string, std::string>>{
           {R"(, "ts": "0", "dur": 50)", R"(ts "0"): ts is "0", and must be a number of microseconds, without quotes)"},
           {R"(, "dur": 50)", "ts missing): ts is missing, and must be a number of microseconds"},
           {R"(, "ts": -1, "dur": "50")",
            R"(dur is "50", and must be a number of microseconds from 0, without quotes)"},
           {R"(, "ts": 0, "dur": -1)", "dur is -1, and must be"},
           {R"(, "ts": 0)", "dur is missing, and must be"}}) {
    SCOPED_TRACE(times);
    EXPECT_THAT(error_of_layers(kineto({reduction, step(times)})),
                AllOf(HasSubstr(R"(event 2 of those with ph X (name "ProfilerStep#1", ts )"), HasSubstr(words)));
  }
  EXPECT_THAT(layers_in(kineto({reduction, step(R"(, "ts": -1.5, "dur": 50)")})), ElementsAre(Pair(8, 11.5)));
}

TEST(ExecutionTrace, ADamagedShapeIsAnError) {
  const auto trace = [](const std::string& shapes) {
    return R"({"schema": "1.1.0", "nodes": [{"id": 1, "name": "c10d::allreduce_", "inputs": {"shapes": [[[4]], []]}},
               {"id": 2, "name": "c10d::allreduce_", "inputs": {"shapes": )" +
           shapes + "}}]}";
  };
  EXPECT_THAT(error_of_layers(trace(R"([[["2000"]], []])")),
              HasSubstr(R"(node 2 ("c10d::allreduce_"): shapes is [["2000"]], and must be lists of numbers from 0)"));
  EXPECT_THAT(error_of_layers(trace("[[[-3]], []]")), HasSubstr("shapes is [[-3]], and must be"));
  EXPECT_THAT(layers_in(trace(R"([[], ["x"]])")), ElementsAre(Pair(4, 0)));
}

TEST(ChakraTrace, ADamagedSizeIsAnError) {
  const auto trace = [](const std::string& size) {
    const auto node = [](const std::string& id, const std::string& bytes) {
      return R"({"id": ")" + id + R"(", "name": "x", "type": "COMM_COLL_NODE",
                 "attr": [{"name": "comm_type", "int64Val": "0"}, {"name": "comm_size", "int64Val": )" +
             bytes + "}]}";
    };
    return node("3", R"("4096")") + node("4", size);
  };
  for (const std::string size : {R"("abc")", R"("-4")", "-4", R"("4611686018427387904")", "4611686018427387904",
                                 R"("1000000000001")", R"("")", "4.5"}) {
    SCOPED_TRACE(size);
    EXPECT_THAT(error_of_layers(trace(size)),
                HasSubstr("node 4 (\"x\"): comm_size is " + size +
                          ", and must be a whole number of bytes from 0 to 1000000000000"));
  }
  EXPECT_THAT(layers_in(trace(R"("0")")), ElementsAre(Pair(1024, 0)));
}

TEST(ExecutionTrace, ADamagedIdIsAnError) {
  const auto trace = [](const std::string& id) {
    return R"({"schema": "1.1.0", "nodes": [{"id": 1, "name": "c10d::allreduce_", "inputs": {"shapes": [[[4]], []]}},
               {"id": )" +
           id + R"(, "name": "aten::mm", "inputs": {"shapes": []}}]})";
  };
  for (const std::string id : {R"("2")", "-2", "2.5", "null"}) {
    EXPECT_THAT(error_of_layers(trace(id)), HasSubstr(R"(node 2 of the file (name "aten::mm"): id is )" + id +
                                                      ", and must be a whole number from 0 to "
                                                      "18446744073709551615, without quotes; correct it"));
  }
}

// {"id": "2"} depends on {"id": "1"}. A field of it is damaged.
TEST(ChakraTrace, ADamagedNumberIsAnError) {
  const auto trace = [](const std::string& id, const std::string& fields) {
    return R"({"id": "1", "type": "COMP_NODE", "durationMicros": 7})" + std::string(R"({"name": "x", "id": )") + id +
           R"(, "type": "COMM_COLL_NODE", "attr": [{"name": "comm_type", "int64Val": "0"},
                                                  {"name": "comm_size", "int64Val": "64"}], )" +
           fields + "}";
  };
  EXPECT_THAT(layers_in(trace(R"("2")", R"("dataDeps": ["1"], "durationMicros": "0", "ctrlDeps": [])")),
              ElementsAre(Pair(16, 7)));
  for (const std::string value :
       {R"("abc")", R"("")", R"("-5")", "-5", "2.5", "null", "[7]", R"("18446744073709551616")"}) {
    SCOPED_TRACE(value);
    EXPECT_THAT(
        error_of_layers(trace(value, R"("dataDeps": ["1"])")),
        HasSubstr(R"(node 2 of the file (name "x"): id is )" + value + ", and must be a whole number from 0 to "));
    for (const std::string field : {"startTimeMicros", "durationMicros"}) {
      EXPECT_THAT(
          error_of_layers(trace("2", '"' + field + "\": " + value)),
          HasSubstr(R"(node 2 ("x"): )" + field + " is " + value + ", and must be a whole number from 0 to 1000"));
    }
    for (const std::string field : {"dataDeps", "ctrlDeps"}) {
      EXPECT_THAT(error_of_layers(trace("2", '"' + field + "\": [\"1\", " + value + "]")),
                  HasSubstr(R"(node 2 ("x"): an item of )" + field + " is " + value + ", and must be a whole number"));
    }
  }
  EXPECT_THAT(error_of_layers(trace("2", R"("ctrlDeps": "1")")),
              HasSubstr(R"(node 2 ("x"): ctrlDeps is "1", and must be a list of the ids of nodes)"));
}

TEST(ChakraTrace, ANodeThatIsMissingOrThereTwiceIsAnError) {
  const std::string reduction =
      R"("type": "COMM_COLL_NODE", "attr": [{"name": "comm_type", "int64Val": "0"}, {"name": "comm_size", "int64Val": "4"}])";
  for (const std::string start : {"", R"("startTimeMicros": "5000", )"}) {
    EXPECT_THAT(error_of_layers(R"({"id": "8", "dataDeps": ["8000", "9"], )" + start + reduction +
                                R"(}{"id": "8000", )" + reduction + "}"),
                HasSubstr("node 8: an item of dataDeps is 9, and must be the id of a node of this trace; correct it"));
  }
  EXPECT_THAT(error_of_layers(R"({"id": "8", )" + reduction + R"(}{"id": 8, "name": "x", )" + reduction + "}"),
              HasSubstr(R"(node 8 ("x"): id is 8 again, and must be the number of one node)"));
}

TEST(LayerList, AFolderIsRefusedAsOneAndAPipeIsRead) {
  const ps::TemporaryFolder folder;
  const absl::Status status = read_layer_list(folder.file("")).status();
  EXPECT_EQ(status, read_traffic_matrix(folder.file("")).status());
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  const std::string pipe = folder.file("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::thread writer([&] { std::ofstream(pipe) << "a 4 0\n"; });
  EXPECT_EQ(read_layer_list(pipe)->layers.size(), 1U);
  writer.join();
  EXPECT_THAT(message_of(read_layer_list("/dev/null").status()), HasSubstr("/dev/null: no layers"));
}

TEST(LayerList, AMarkOfUtf8IsSkipped) {
  EXPECT_THAT(layers_in("\xef\xbb\xbf# list\na 4 0\n"), ElementsAre(Pair(1, 0)));
  EXPECT_THAT(layers_in("\xef\xbb\xbf" + kineto({collective_event("cpu_op", "a", "allreduce", 8, 10)})),
              ElementsAre(Pair(8, 0)));
}

TEST(Traces, ErrorsOfOtherFilesSayHowEachKindBegins) {
  for (const auto& [content, words] : std::vector<std::pair<std::string, std::string>>{
           {R"([{"id": "1", "type": "COMP_NODE"}])", "a JSON list without \"ph\": neither"},
           {R"({"nodes": [{"id": 1, "type": "COMM_COLL_NODE"}]})", "JSON objects without \"type\": neither"},
           {"{} 3", "JSON with 3 beside objects: neither"}}) {
    EXPECT_THAT(error_of_layers(content),
                AllOf(HasSubstr(words), HasSubstr("A layer list has lines `name bytes microseconds`."),
                      HasSubstr("Kineto is {\"traceEvents\": […]} or a list of events with \"ph\";"),
                      HasSubstr("PyTorch, {\"schema\": …"), HasSubstr("(chakra_jsonizer)")));
  }
  EXPECT_THAT(error_of_layers("a\x1b\x91 4 5"), HasSubstr("binary, no layer list and no trace in JSON"));
  EXPECT_THAT(error_of_layers("\xff\xfe{"), HasSubstr("text in UTF-16; convert it with iconv"));
  EXPECT_THAT(message_of(layers_from("<html>").status()),
              HasSubstr(":1: must be `name bytes microseconds`; a trace begins with { or ["));
}

}  // namespace
}  // namespace gradrail::bench
