#include "gradrail/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "base/status.h"
#include "fmt/format.h"

namespace gradrail::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ClusterSpec parsed(std::string_view json) {
  const absl::StatusOr<ClusterSpec> cluster = parse_cluster(json, "test");
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  return cluster.value_or(ClusterSpec{});
}

TEST(ClusterSpec, ListsOfAddresses) {
  const ClusterSpec cluster = parsed(R"({"ps": ["a:1", "b"], "worker": ["c:3", "d:4"]})");
  EXPECT_THAT(cluster.ps, ElementsAre("a:1", "b:2222"));
  EXPECT_THAT(cluster.workers, ElementsAre("c:3", "d:4"));
  EXPECT_FALSE(cluster.chief_job);
}

TEST(ClusterSpec, AFileHasTheKeysOfTfConfigOrThoseOfJobs) {
  for (const auto& [text, words] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"({"Cluster": {"ps": ["a"], "worker": ["b"]}})", "test: unknown key 'Cluster': do you mean 'cluster'?"},
           {R"({"cluster": {"ps": ["a"], "worker": ["b"]}, "tasks": {}})",
            "test: unknown key 'tasks': do you mean 'task'?"},
           {R"({"ps": ["a"], "worker": ["b"], "Worker": ["c"]})", "test: unknown job 'Worker': do you mean 'worker'?"},
           {"{}", "test: job 'ps' has no task"}}) {
    EXPECT_THAT(std::string(message_of(parse_cluster(text, "test").status())), HasSubstr(words)) << text;
  }
  EXPECT_TRUE(parsed(R"({"sparseCluster": {"ps": ["a"], "worker": {"0": "b"}}, "task": {}})").sparse);
}

TEST(ClusterSpec, BelowCluster) {
  EXPECT_EQ(parsed(R"({"cluster": {"ps": ["a"], "worker": ["b"]}})"), parsed(R"({"ps": ["a"], "worker": ["b"]})"));
}

TEST(ClusterSpec, ObjectsOfIndexToAddress) {
  const ClusterSpec cluster = parsed(R"({"ps": {"0": "a"}, "worker": {"1": "c", "0": "b"}})");
  EXPECT_THAT(cluster.workers, ElementsAre("b:2222", "c:2222"));
}

TEST(ClusterSpec, SparseWorkersKeepTheirIndexes) {
  const ClusterSpec cluster = parsed(R"({"ps": ["a"], "worker": {"2": "c"}})");
  EXPECT_THAT(cluster.workers, ElementsAre(kUnknownAddress, kUnknownAddress, "c:2222"));
  EXPECT_TRUE(cluster.sparse);
  EXPECT_FALSE(parsed(R"({"ps": ["a"], "worker": {"0": "b"}})").sparse);
  EXPECT_EQ(resolve_task(cluster, "worker", 2)->index, 2u);
  EXPECT_THAT(std::string(message_of(resolve_task(cluster, "worker", 1).status())),
              HasSubstr("task_index 1: the cluster specification leaves out this task"));
}

TEST(ClusterSpec, SparseWorkersMoveUpBehindTheChief) {
  const ClusterSpec cluster = parsed(R"({"ps": ["a"], "chief": {"0": "b"}, "worker": {"1": "c"}})");
  EXPECT_THAT(cluster.workers, ElementsAre("b:2222", kUnknownAddress, "c:2222"));
  EXPECT_EQ(resolve_task(cluster, "worker", 1)->index, 2u);
}

TEST(ClusterSpec, ChiefBecomesWorkerZero) {
  for (const char* name : {"chief", "master"}) {
    const ClusterSpec cluster = parsed(fmt::format(R"({{"ps": ["a"], "worker": ["b"], "{}": ["c"]}})", name));
    EXPECT_TRUE(cluster.chief_job);
    EXPECT_THAT(cluster.workers, ElementsAre("c:2222", "b:2222"));
  }
}

TEST(ClusterSpec, EvaluatorIsIgnored) {
  EXPECT_EQ(parsed(R"({"ps": ["a"], "worker": ["b"], "evaluator": ["e"]})").workers.size(), 1u);
}

TEST(ClusterSpec, Ipv6KeepsItsBrackets) {
  const ClusterSpec cluster = parsed(R"({"ps": ["[::1]:2223"], "worker": ["[fe80::1]"]})");
  EXPECT_THAT(cluster.ps, ElementsAre("[::1]:2223"));
  EXPECT_THAT(cluster.workers, ElementsAre("[fe80::1]:2222"));
}

struct Bad {
  const char* name;
  std::string json;
  const char* words;
};

class ClusterSpecBad : public ::testing::TestWithParam<Bad> {};

TEST_P(ClusterSpecBad, IsRefusedWithItsSourceAndAReason) {
  const absl::Status refused = parse_cluster(GetParam().json, "cluster.json").status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(message_of(refused)), HasSubstr("cluster.json: "));
  EXPECT_THAT(std::string(message_of(refused)), HasSubstr(GetParam().words));
}

std::string with_worker(const std::string& task) { return fmt::format(R"({{"ps": ["a"], "worker": {}}})", task); }

std::string many_workers() {
  std::string list;
  for (uint32_t i = 0; i <= kMaxWorkers; ++i) list += fmt::format("{}\"w{}\"", i == 0 ? "" : ", ", i);
  return with_worker("[" + list + "]");
}

INSTANTIATE_TEST_SUITE_P(
    Every, ClusterSpecBad,
    ::testing::Values(
        Bad{"Empty", "", "is empty"}, Bad{"Cut", R"({"ps": ["a")", "not JSON"},
        Bad{"TrailingWords", R"({"ps": ["a"], "worker": ["b"]} x)", "not JSON"},
        Bad{"InvalidUtf8", "{\"ps\": [\"\xff\"], \"worker\": [\"b\"]}", "not JSON"},
        Bad{"Deep", std::string(100'000, '['), "not JSON"}, Bad{"List", "[]", "must be a JSON object"},
        Bad{"Number", "5", "must be a JSON object"}, Bad{"Null", "null", "must be a JSON object"},
        Bad{"ClusterIsList", R"({"cluster": []})", "\"cluster\" must be an object"},
        Bad{"ClusterIsNull", R"({"cluster": null})", "\"cluster\" must be an object"},
        Bad{"NoJobs", "{}", "job 'ps' has no task"}, Bad{"NoPs", R"({"worker": ["b"]})", "job 'ps' has no task"},
        Bad{"EmptyPs", R"({"ps": [], "worker": ["b"]})", "job 'ps' has no task"},
        Bad{"NoWorker", R"({"ps": ["a"]})", "job 'worker' has no task"},
        Bad{"EmptyWorkerObject", with_worker("{}"), "job 'worker' has no task"},
        Bad{"UnknownJob", R"({"ps": ["a"], "worker": ["b"], "boss": ["c"]})", "unknown job 'boss'"},
        Bad{"JobIsString", with_worker("\"b\""), "job 'worker' must be a list"},
        Bad{"JobIsNull", with_worker("null"), "job 'worker' must be a list"},
        Bad{"TaskIsNumber", with_worker("[1]"), "job 'worker': every task must be a \"host:port\" string"},
        Bad{"TaskIsList", with_worker("[[\"b\"]]"), "job 'worker': every task must be"},
        Bad{"SparsePs", R"({"ps": {"0": "a", "2": "c"}, "worker": ["b"]})", "job 'ps': task 1 is missing"},
        Bad{"PsFromOne", R"({"ps": {"1": "a"}, "worker": ["b"]})", "job 'ps': task 0 is missing"},
        Bad{"ObjectOfWords", with_worker(R"({"first": "b"})"), "job 'worker': 'first' is not the index of a task"},
        Bad{"IndexWithZero", with_worker(R"({"01": "b"})"), "'01' is not the index of a task"},
        Bad{"IndexNegative", with_worker(R"({"-1": "b"})"), "'-1' is not the index of a task"},
        Bad{"IndexTooLarge", with_worker(R"({"4000000000": "b"})"), "task 4000000000: the highest index is 4095"},
        Bad{"ObjectWithNumber", with_worker(R"({"0": 7})"), "job 'worker': task 0 must be a \"host:port\" string"},
        Bad{"SparseChief", R"({"ps": ["a"], "chief": {"1": "c"}})", "job 'chief' must have one task"},
        Bad{"TwoChiefs", R"({"ps": ["a"], "worker": ["b"], "chief": ["c", "d"]})", "job 'chief' must have one task"},
        Bad{"ChiefAndMaster", R"({"ps": ["a"], "worker": ["b"], "chief": ["c"], "master": ["d"]})",
            "jobs 'chief' and 'master' are two names of one job: keep one of them"},
        Bad{"SameAddressInTwoJobs", with_worker(R"(["a:2222"])"), "address a:2222 is given to two tasks"},
        Bad{"SameAddressTwice", with_worker(R"(["b", "b"])"), "address b:2222 is given to two tasks"},
        Bad{"PortZero", with_worker(R"(["b:0"])"), "a task's port must not be 0"},
        Bad{"PortTooLarge", with_worker(R"(["b:65536"])"), "the port must be a number up to 65535"},
        Bad{"PortNegative", with_worker(R"(["b:-1"])"), "the port must be a number"},
        Bad{"PortIsWord", with_worker(R"(["b:http"])"), "the port must be a number"},
        Bad{"PortWithTail", with_worker(R"(["b:22 "])"), "the port must be a number"},
        Bad{"PortMissing", with_worker(R"(["b:"])"), "no port after ':'"},
        Bad{"HostMissing", with_worker(R"([":22"])"), "no host"},
        Bad{"EmptyAddress", with_worker(R"([""])"), "no host"},
        Bad{"Url", with_worker(R"(["http://b"])"), "job 'worker': 'http://b' is not an address"},
        Bad{"Space", with_worker(R"(["b c"])"), "no such characters"},
        Bad{"Star", with_worker(R"(["*:22"])"), "0.0.0.0 and [::] stand for all addresses"},
        Bad{"TwoAddresses", with_worker(R"(["b:22,c:22"])"), "one address is needed, not a list"},
        Bad{"BareIpv6", with_worker(R"(["::1"])"), "IPv6 addresses need brackets"},
        Bad{"OpenBracket", with_worker(R"(["[::1"])"), "missing ']'"},
        Bad{"EmptyBrackets", with_worker(R"(["[]:22"])"), "no host"},
        Bad{"WordAfterBracket", with_worker(R"(["[::1]22"])"), "expected ':' after ']'"},
        Bad{"NoPortAfterBracket", with_worker(R"(["[::1]:"])"), "no port after ':'"},
        Bad{"TooManyWorkers", many_workers(), "more than 4096 workers"}),
    [](const auto& each) { return std::string(each.param.name); });

TEST(ClusterSpec, DuplicateKeysAreNotSilentlyDropped) {
  const absl::Status refused = parse_cluster(R"({"ps": ["a"], "worker": ["b"], "ps": ["c"]})", "test").status();
  EXPECT_THAT(std::string(message_of(refused)), HasSubstr("test: key 'ps' occurs twice in one object"));
}

TEST(ClusterSpec, Files) {
  const std::string path = ::testing::TempDir() + "gradrail_cluster_spec_test.json";
  std::ofstream(path) << R"({"ps": ["a"], "worker": ["b"]})";
  EXPECT_TRUE(read_cluster_file(path).ok());
  std::ofstream(path) << "";
  EXPECT_THAT(std::string(message_of(read_cluster_file(path).status())), HasSubstr(path));
  std::remove(path.c_str());
  EXPECT_THAT(std::string(message_of(read_cluster_file(path).status())), HasSubstr("cannot be read"));
}

TEST(ClusterSpec, CommaSeparatedHosts) {
  const absl::StatusOr<ClusterSpec> cluster = cluster_from_hosts("a:1,b:2", "c:3");
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_THAT(cluster->ps, ElementsAre("a:1", "b:2"));
  EXPECT_TRUE(absl::IsInvalidArgument(cluster_from_hosts("", "c").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(cluster_from_hosts("a", "").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(cluster_from_hosts("a", "c, d").status()));
  EXPECT_THAT(std::string(message_of(cluster_from_hosts("a", "c:x").status())), HasSubstr("--worker_hosts"));
}

TEST(HostPortText, RoundTrip) {
  for (const char* text : {"host:1", "10.0.0.1:2222", "[::1]:65535", "a-b.c:22"}) {
    const absl::StatusOr<HostPort> address = parse_host_port(text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(to_string(*address), text);
  }
  EXPECT_EQ(parse_host_port("host")->port, kDefaultPort);
  EXPECT_EQ(parse_host_port("[::1]")->host, "::1");
  EXPECT_EQ(parse_host_port("host:0")->port, 0);
}

TEST(HostPortText, AHostIsANameOrAnAddress) {
  for (const char* text : {"n1", "gpu_7.cluster", "10.0.0.1", "1a", "1.2.3.4.example", "0xg", "xff", "[fe80::1%eth0]",
                           "[::ffff:10.0.0.1]"})
    EXPECT_TRUE(parse_host_port(text).ok()) << text;
  // getaddrinfo() takes "7" and "0x10" for addresses of this kind: 0.0.0.7.
  for (const char* text : {"7", "0x10", "0xff", "0x", "1.0xFf", "99999999999999999999", "1.2.3", "256.1.1.1", "n1.7",
                           "-1", "-", "a\x01", "[n1]:1", "[]"})
    EXPECT_TRUE(absl::IsInvalidArgument(parse_host_port(text).status())) << text;
}

TEST(HostList, IsSplitAndCompleted) {
  const absl::StatusOr<std::vector<std::string>> hosts = parse_host_list("a:1,b,,[::1],");
  ASSERT_TRUE(hosts.ok()) << hosts.status();
  EXPECT_THAT(*hosts, ElementsAre("a:1", "b:2222", "[::1]:2222"));
  for (const char* list : {"", ",", " , ", "a,7", "a b"})
    EXPECT_TRUE(absl::IsInvalidArgument(parse_host_list(list).status())) << list;
}

TEST(TfConfigText, WithAndWithoutTask) {
  const absl::StatusOr<TfConfig> config = parse_tf_config(
      R"({"cluster": {"ps": ["a"], "worker": ["b", "c"]}, "task": {"type": "worker", "index": 1}, "rpc_layer": "grpc"})");
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_TRUE(config->task.has_value());
  EXPECT_EQ(config->task->job, "worker");
  EXPECT_EQ(config->task->index, 1u);
  EXPECT_FALSE(parse_tf_config(R"({"cluster": {"ps": ["a"], "worker": ["b"]}})")->task.has_value());
}

TEST(TfConfigText, ChiefMovesWorkersUpByOne) {
  const auto task = [](std::string_view type) {
    const absl::StatusOr<TfConfig> config = parse_tf_config(fmt::format(
        R"({{"cluster": {{"ps": ["a"], "chief": ["b"], "worker": ["c"]}}, "task": {{"type": "{}", "index": 0}}}})",
        type));
    EXPECT_TRUE(config.ok()) << config.status();
    return config->task->index;
  };
  EXPECT_EQ(task("chief"), 0u);
  EXPECT_EQ(task("master"), 0u);
  EXPECT_EQ(task("worker"), 1u);
}

TEST(TfConfigText, IndexMayBeAString) {
  const absl::StatusOr<TfConfig> config =
      parse_tf_config(R"({"cluster": {"ps": ["a"], "worker": ["b", "c"]}, "task": {"type": "worker", "index": "1"}})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->task->index, 1u);
}

TEST(TfConfigText, ChiefNeedsNoIndex) {
  const absl::StatusOr<TfConfig> config =
      parse_tf_config(R"({"cluster": {"ps": ["a"], "chief": ["b"]}, "task": {"type": "chief"}})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->task->job, "worker");
  EXPECT_EQ(config->task->index, 0u);
}

TEST(TfConfigText, WithoutJobsThereIsNoCluster) {
  for (const char* text :
       {"{}", R"({"cluster": {}})", R"({"environment": "cloud"})",
        R"({"cluster": {}, "task": {"type": "worker", "index": 0}})", R"({"task": {"type": "chief", "index": "0"}})"}) {
    const absl::StatusOr<TfConfig> config = parse_tf_config(text);
    ASSERT_TRUE(config.ok()) << text << ": " << config.status();
    EXPECT_FALSE(config->cluster.has_value()) << text;
    EXPECT_FALSE(config->task.has_value()) << text;
  }
  EXPECT_TRUE(parse_tf_config(R"({"ps": ["a"], "worker": ["b"]})")->cluster.has_value()) << "content of a cluster file";
  for (const char* text : {R"({"task": {"type": "ps", "index": 0}})", R"({"task": {"type": "worker", "index": 1}})"}) {
    EXPECT_THAT(std::string(message_of(parse_tf_config(text).status())), HasSubstr("needs \"cluster\"")) << text;
  }
}

TEST(TfConfigText, EvaluatorIsNoTaskOfTheCluster) {
  for (const char* text : {R"({"cluster": {"ps": ["a"], "worker": ["b"]}, "task": {"type": "evaluator", "index": 0}})",
                           R"({"task": {"type": "evaluator"}})"}) {
    const absl::StatusOr<TfConfig> config = parse_tf_config(text);
    ASSERT_TRUE(config.ok()) << text << ": " << config.status();
    EXPECT_EQ(config->task->job, "evaluator");
  }
}

TEST(TfConfigText, BadTasks) {
  for (const char* task : {"5", "{}", R"({"type": "worker"})", R"({"index": 0})", R"({"type": 1, "index": 0})",
                           R"({"type": "worker", "index": "first"})", R"({"type": "worker", "index": 0.5})",
                           R"({"type": "worker", "index": ""})", R"({"type": "worker", "index": null})",
                           R"({"type": "worker", "index": -1})", R"({"type": "worker", "index": 4096})",
                           R"({"type": "ps", "index": 1})", R"({"type": "chief", "index": 0})",
                           R"({"type": "boss", "index": 0})", R"({"type": "worker", "index": 18446744073709551615})"}) {
    const absl::Status refused =
        parse_tf_config(fmt::format(R"({{"cluster": {{"ps": ["a"], "worker": ["b"]}}, "task": {}}})", task)).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << task << ": " << refused;
    EXPECT_THAT(std::string(message_of(refused)), HasSubstr("TF_CONFIG: ")) << task;
  }
}

std::string refusal(std::string_view tf_config) {
  const absl::Status refused = parse_tf_config(tf_config).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << tf_config << ": " << refused;
  return std::string(message_of(refused));
}

TEST(TfConfigText, UnknownKeysAreErrorsThatNameTheKnownOnes) {
  const std::string good = R"("cluster": {"ps": ["a"], "worker": ["b"]}, "task": {"type": "worker", "index": 0})";
  for (const auto& [text, words] : std::initializer_list<std::pair<std::string, std::string>>{
           {R"({"Cluster": {"worker": ["b"], "ps": ["a"]}, "task": {"type": "worker", "index": 0}})",
            "unknown key 'Cluster': do you mean 'cluster'?"},
           {R"({"cluster_spec": {"worker": ["b"]}})", "unknown key 'cluster_spec': do you mean 'cluster'?"},
           {R"({"sparse_cluster": {}})", "unknown key 'sparse_cluster': do you mean 'sparseCluster'?"},
           {R"({"Worker": ["b"], "PS": ["a"]})", "unknown key 'PS': do you mean 'ps'?"},
           {R"({"hosts": ["b"]})", "unknown key 'hosts' (there are: cluster, sparseCluster, task, ps"},
           {"{" + good + R"(, "Task": {}})", "unknown key 'Task': do you mean 'task'?"},
           {"{" + good + R"(, "worker": ["c"]})", "unknown key 'worker' (there are: cluster, sparseCluster, task)"},
           {R"({"cluster": {"ps": ["a"], "Worker": ["b"]}})", "unknown job 'Worker': do you mean 'worker'?"},
           {R"({"cluster": {"ps": ["a"], "workers": ["b"]}})", "unknown job 'workers': do you mean 'worker'?"},
           {R"({"cluster": {"PS": ["a"], "worker": ["b"]}})", "unknown job 'PS': do you mean 'ps'?"},
           {R"({"cluster": {"p\u0001": ["a"], "worker": ["b"]}})", "unknown job 'p\\x01'"},
           {R"({"task": {"type": "worker", "index": 0, "task_index": 1}})",
            "unknown key of \"task\" 'task_index': do you mean 'index'?"},
           {R"({"task": {"Type": "worker", "index": 0}})", "unknown key of \"task\" 'Type': do you mean 'type'?"},
           {R"({"worker": ["c:1"]})", "job 'ps' has no task"}}) {
    EXPECT_THAT(refusal(text), HasSubstr("TF_CONFIG: " + words)) << text;
  }
}

TEST(TfConfigText, KeysOfTensorFlowAndOfItsPlatformsAreIgnored) {
  const absl::StatusOr<TfConfig> config = parse_tf_config(
      R"({"cluster": {"ps": ["a"], "worker": ["b"], "evaluator": ["c"]}, "environment": "cloud", "rpc_layer": "grpc",
          "session_master": "", "eval_session_master": "", "service": {}, "model_dir": "/m", "job": {},
          "task": {"type": "worker", "index": 0, "trial": "1", "cloud": "x"}})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->task->index, 0u);
}

TEST(TfConfigText, TextsThatAreNoDescription) {
  EXPECT_THAT(refusal(""), HasSubstr("TF_CONFIG: is empty"));
  EXPECT_THAT(refusal(" "), HasSubstr("TF_CONFIG: not JSON"));
  for (const char* text : {"[]", "null", "5", "\"cluster\""})
    EXPECT_THAT(refusal(text), HasSubstr("must be a JSON object"));
  EXPECT_THAT(refusal(R"({"cluster": null})"), HasSubstr("\"cluster\" must be an object of jobs"));
  EXPECT_THAT(refusal(R"({"cluster": {}, "task": {}, "cluster": {"ps": ["a"], "worker": ["b"]}})"),
              HasSubstr("key 'cluster' occurs twice"));
  EXPECT_THAT(refusal(R"({"cluster": {"ps": ["a"], "worker": ["b"], "ps": ["c"]}})"),
              HasSubstr("key 'ps' occurs twice"));
  EXPECT_THAT(refusal(R"({"task": {"type": "worker", "index": 0, "index": 1}})"),
              HasSubstr("key 'index' occurs twice"));
  EXPECT_THAT(refusal(R"({"cluster": {"ps": ["grpc://a:1"], "worker": ["b"]}})"),
              HasSubstr("'grpc://a:1' is not an address (host:port): leave out grpc://"));
}

/// The dynamic form of Kubeflow: a task has the addresses of all ps tasks, or its own address.
TEST(TfConfigText, SparseClusterHasTheOwnAddressAlone) {
  const auto config = [](std::string_view jobs, std::string_view type, int index) {
    return fmt::format(R"({{"sparseCluster": {{{}}}, "task": {{"type": "{}", "index": {}}}}})", jobs, type, index);
  };
  absl::StatusOr<TfConfig> worker =
      parse_tf_config(config(R"("worker": {"2": "w2"}, "ps": ["p0", "p1"])", "worker", 2));
  ASSERT_TRUE(worker.ok()) << worker.status();
  EXPECT_EQ(worker->task->index, 2u);
  EXPECT_THAT(worker->cluster->workers, ElementsAre(kUnknownAddress, kUnknownAddress, "w2:2222"));
  EXPECT_THAT(worker->cluster->ps, ElementsAre("p0:2222", "p1:2222"));
  EXPECT_TRUE(worker->cluster->sparse);
  worker = parse_tf_config(config(R"("worker": {"0": "w0"}, "ps": ["p0"])", "worker", 0));
  ASSERT_TRUE(worker.ok()) << worker.status();
  EXPECT_TRUE(worker->cluster->sparse) << "there may be others";
  const absl::StatusOr<TfConfig> ps = parse_tf_config(config(R"("worker": {}, "ps": ["p1"])", "ps", 1));
  ASSERT_TRUE(ps.ok()) << ps.status();
  EXPECT_EQ(ps->task->job, "ps");
  EXPECT_EQ(ps->task->index, 1u);
  EXPECT_THAT(ps->cluster->ps, ElementsAre(kUnknownAddress, "p1:2222"));
  EXPECT_THAT(ps->cluster->workers, ElementsAre(kUnknownAddress)) << "the chief is awaited";
  const absl::StatusOr<TfConfig> chief = parse_tf_config(config(R"("chief": {"0": "c"}, "ps": ["p0"])", "chief", 0));
  ASSERT_TRUE(chief.ok()) << chief.status();
  EXPECT_THAT(chief->cluster->workers, ElementsAre("c:2222"));
  EXPECT_THAT(refusal(config(R"("worker": {}, "ps": ["p0"])", "chief", 0)),
              HasSubstr("TF_CONFIG: \"sparseCluster\" has no address of task chief 0"));
  EXPECT_THAT(refusal(config(R"("worker": {"0": "w"}, "ps": ["p0"])", "worker", 3)),
              HasSubstr("no address of task worker 3"));
  EXPECT_THAT(refusal(config(R"("worker": {}, "ps": ["p0"])", "worker", 0)), HasSubstr("leaves out this task"));
  EXPECT_THAT(refusal(config(R"("worker": {"0": "w"}, "ps": [])", "worker", 0)), HasSubstr("job 'ps' has no task"));
  EXPECT_THAT(refusal(config(R"("worker": {}, "ps": ["p0", "p1"])", "ps", 2)), HasSubstr("task_index 2"));
  EXPECT_THAT(refusal(config(R"("worker": {}, "ps": ["p0"])", "ps", 4000000)), HasSubstr("task_index 4000000"));
  EXPECT_THAT(refusal(R"({"sparseCluster": {"ps": ["a"]}, "cluster": {"ps": ["a"], "worker": ["b"]}})"),
              HasSubstr("keep one of them"));
  EXPECT_THAT(refusal(R"({"sparseCluster": [], "task": {"type": "ps"}})"),
              HasSubstr("\"sparseCluster\" must be an object"));
}

TEST(TaskNames, Resolve) {
  ClusterSpec cluster{.ps = {"a", "b"}, .workers = {"c"}};
  EXPECT_EQ(resolve_task(cluster, "ps", 1)->index, 1u);
  EXPECT_FALSE(resolve_task(cluster, "ps", 2).ok());
  EXPECT_FALSE(resolve_task(cluster, "ps", -1).ok());
  EXPECT_TRUE(resolve_task(cluster, "worker", 7).ok()) << "workers may join later";
  EXPECT_TRUE(resolve_task(cluster, "worker", kMaxWorkers - 1).ok());
  EXPECT_FALSE(resolve_task(cluster, "worker", kMaxWorkers).ok());
  EXPECT_FALSE(resolve_task(cluster, "worker", INT64_MAX).ok());
  EXPECT_THAT(std::string(message_of(resolve_task(cluster, "worker", 2'000'000'000).status())),
              HasSubstr("task_index 2000000000: job 'worker' has tasks 0 to 0 in the cluster specification, and late "
                        "workers up to 4095"));
  EXPECT_FALSE(resolve_task(cluster, "chief", 0).ok());
  cluster.chief_job = true;
  EXPECT_EQ(resolve_task(cluster, "chief", 0)->job, "worker");
  EXPECT_FALSE(resolve_task(cluster, "chief", 1).ok());
  EXPECT_EQ(resolve_task(cluster, "worker", 0)->index, 1u);
  EXPECT_FALSE(resolve_task(cluster, "worker", kMaxWorkers - 1).ok());
  EXPECT_FALSE(resolve_task(cluster, "worker", INT64_MAX).ok()) << "the index moves up by one and must not wrap";
}

}  // namespace
}  // namespace gradrail::ps
