"""Tests `gradrail-report convert`: the step of a trace, and what it says about a damaged one."""
import gzip
import json
import os
import unittest

from report_test import USAGE, ReportTest


def step(number, start_us, duration_us, category="user_annotation"):
    return {"ph": "X", "cat": category, "name": f"ProfilerStep#{number}", "ts": start_us, "dur": duration_us}


def collective(name, elements, start_us, category="cpu_op", event="record_param_comms"):
    return {"ph": "X", "cat": category, "name": event, "pid": 1, "tid": 2, "dur": 5, "ts": start_us,
            "args": {"Collective name": name, "In msg nelems": elements, "dtype": "Float", "Group size": 2}}


def shaped(category, name, dims, start_us):
    return {"ph": "X", "cat": category, "name": name, "pid": 30424, "tid": 30431, "ts": start_us, "dur": 9.4,
            "args": {"External id": 1, "Input type": ["TensorList"], "Input Dims": dims}}


def kineto(*events):
    return {"schemaVersion": 1, "deviceProperties": [], "displayTimeUnit": "ms", "traceEvents": [
        *events, {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}], "traceName": "a"}


def chakra(*nodes):
    return "\n".join(map(json.dumps, nodes))


def reduction(number, size, **fields):
    return {"id": number, "type": "COMM_COLL_NODE", **fields,
            "attr": [{"name": "comm_type", "int64Val": "0"}, {"name": "comm_size", "int64Val": size}]}


class Convert(ReportTest):
    def layers(self, content):
        """Returns [(elements, microseconds)]."""
        first, *lines = self.report("convert", self.write(content, "trace.json")).splitlines()
        self.assertTrue(first.startswith("# "), first)
        self.about = first.removeprefix("# ")
        words = [line.split() for line in lines]
        self.assertTrue(all(len(each) == 3 for each in words), words)
        return [(int(size) / 4, float(micros)) for _, size, micros in words]

    def refused(self, content, *words):
        said = self.report("convert", self.write(content, "trace.json"), code=USAGE)
        self.assertIn("trace.json: ", said)
        for each in words:
            self.assertIn(each, said)


class Files(Convert):
    def test_the_list_goes_to_a_file_and_names_the_step(self):
        trace, file = self.write(kineto(collective("allreduce", 8, 10))), self.folder / "list.txt"
        self.assertIn(": 1 layers, 32 bytes", self.report("convert", trace, "-o", file))
        self.assertEqual(file.read_text(), "# Kineto trace without ProfilerStep#N: all of it is one step\nlayer0 32 0.0\n")
        self.assertIn("No such file", self.report("convert", trace, "-o", self.folder / "none" / "x", code=1))

    def test_compressed_files_pipes_and_the_mark_of_utf8(self):
        trace = json.dumps(kineto(collective("allreduce", 8, 10))).encode()
        half = len(trace) // 2
        self.assertEqual(self.layers(gzip.compress(trace[:half]) + gzip.compress(trace[half:])), [(8, 0)])
        self.assertEqual(self.layers(b"\xef\xbb\xbf" + trace), [(8, 0)])
        reader, writer = os.pipe()
        os.write(writer, trace)
        os.close(writer)
        self.assertIn("layer0 32", self.report("convert", f"/dev/fd/{reader}"))
        os.close(reader)
        packed = gzip.compress(trace)
        for damaged in (packed[:5], packed[:-1], packed[:30] + b"\0\0" + packed[32:], packed + b"\n1"):
            self.refused(damaged, "gzip data")

    def test_other_files_are_refused(self):
        for content, words in (([{"id": "1", "type": "COMP_NODE"}], 'a JSON list without "ph": no trace'),
                               ({"nodes": [{"id": 1, "type": "COMM_COLL_NODE"}]}, 'JSON objects without "type": no trace'),
                               ("{} 3", "JSON with 3 beside objects: no trace"), ("fc 4 1\n", "a text: no trace"), ("", "a text: no trace")):
            with self.subTest(content=content):
                self.refused(content, words, 'Kineto is {"traceEvents": […]} or a list of events with "ph";',
                             'PyTorch, {"schema": …', "(chakra_jsonizer)")
        for content in (b"\x07\x0a\x05\x80.0.4", b"\xff\xfe{\x00"):
            self.refused(content, "binary, or text in another encoding than UTF-8; convert a Chakra trace with chakra_jsonizer")
        self.assertIn("No such file", self.report("convert", "/none/x", code=USAGE))
        self.assertIn("Is a directory", self.report("convert", self.folder, code=USAGE))

    def test_unusable_traces_are_refused_with_what_they_have(self):
        for content, words in (
                ("{", "not JSON: "), ('{"traceEvents": [', "not JSON: "), ('{"traceEvents": [' + "[" * 100000, "not JSON: "),
                ('{"traceEvents": [NaN]}', "NaN is no JSON"), (kineto(), "found 0 events, 0 steps, no collective"),
                (kineto(step(1, 0, 9), collective("broadcast", 8, 1)), "found 2 events, 1 steps, collectives broadcast"),
                (kineto({"ph": "X", "name": "gloo:all_reduce", "ts": 1, "dur": 2, "args": {}}),
                 "1 events of reductions, none with a size (In msg nelems or Input Dims): record it with profile(record_shapes=True), "
                 "in a PyTorch with torch.profiler.kineto_available()"),
                (kineto(step(1, 0, 9), collective("allreduce", 8, 10)), "all outside of its 1 steps"),
                (kineto(step(1, 0, 1e9), collective("allreduce", 8, 7e7)), "a reduction begins after 70 s"),
                ({"schema": "1.1.0", "nodes": [{"id": 1, "name": "c10d::allgather_", "inputs": {"shapes": []}}]},
                 "an execution trace of PyTorch without gradients: looked for c10d::allreduce_, c10d::reduce_ and "
                 "c10d::…reduce_scatter… with shapes; found 1 nodes, collectives allgather_"),
                ('{"schema": "1.1.0", "nodes": [', "not JSON: "),
                ({"workload_graph": []}, "a workload graph of Chakra: convert the .et file of the same run"),
                (chakra({}, {"id": "1", "type": "COMP_NODE"}), "found 1 nodes, no other collective"),
                (chakra({}, {"id": "1", "type": "COMM_COLL_NODE", "attr": [{"name": "comm_type", "int64Val": "2"}]}),
                 'found 1 nodes, comm_type "2"'),
                (chakra(reduction("1", "4", dataDeps=["2"]), reduction("2", "4", dataDeps=["1"])), "dependencies in a circle")):
            with self.subTest(content=str(content)[:80]):
                self.refused(content, words)


class Kineto(Convert):
    def test_the_step_with_the_median_duration_is_replayed(self):
        self.assertEqual(self.layers(kineto(step(1, 0, 900), step(2, 1000, 500), step(3, 2000, 600), step(4, 3000, 10),
                                            collective("allreduce", 7, 5), collective("allreduce", 100, 1400),
                                            collective("allreduce", 300, 2450), collective("_reduce_scatter_base", 200, 2400),
                                            collective("broadcast", 900, 2001))), [(200, 400), (300, 450)])
        self.assertEqual(self.about, "Kineto trace: ProfilerStep#3, the median of 3 steps with reductions")

    def test_kernels_count_instead_of_their_calls(self):
        self.assertEqual(self.layers(kineto(
            step(1, 0, 100), step(1, 500, 400, "gpu_user_annotation"), collective("allreduce", 64, 20),
            {"ph": "X", "cat": "user_annotation", "name": "nccl:all_reduce", "ts": 19, "dur": 3, "args": {"Input Dims": [[64]]}},
            {"ph": "X", "cat": "gpu_user_annotation", "name": "nccl:all_reduce", "ts": 700, "dur": 3},
            collective("allreduce", 64, 700, "kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"))), [(64, 200)])

    def test_tasks_have_their_sizes_from_their_shapes(self):  # a list of events alone, and no steps
        self.assertEqual(self.layers([{"ph": "X", "name": "aten::mm", "ts": 10, "dur": 2},
                                      {"ph": "X", "name": "gloo:all_reduce", "ts": 40, "dur": 9, "args": {"Input Dims": [[2, 3]]}},
                                      {"ph": "X", "name": "gloo:all_reduce", "ts": 30, "dur": 9,
                                       "args": {"Input Dims": [[5], [6]]}}]), [(11, 20), (6, 30)])

    def test_calls_count_instead_of_their_tasks(self):
        """Gloo runs few tasks at a time: the second one begins later than its gradient is ready. As PyTorch 2.15 writes it."""
        self.assertEqual(self.layers(kineto(
            step(2, 100, 500), shaped("cpu_op", "c10d::allreduce_", [[[1059850]], [], [], [], [], []], 300.5),
            shaped("cpu_op", "c10d::allreduce_", [[[20, 10], []], [], [], [], [], []], 340),
            shaped("cpu_op", "c10d::_reduce_scatter_base_", [[8, 4], [64, 4], [], [], []], 350),
            shaped("cpu_op", "c10d::_allgather_base_", [[64, 4], [8, 4], [], [], []], 360),
            shaped("user_annotation", "gloo:all_reduce", [[1059850]], 310),
            shaped("user_annotation", "gloo:all_reduce", [[200], []], 420))), [(1059850, 200.5), (201, 240), (256, 250)])

    def test_tasks_count_if_some_calls_have_no_shapes(self):
        """PyTorch of 2023 writes no shapes for a list of tensors."""
        self.assertEqual(self.layers(kineto(
            step(550, 0, 900), shaped("cpu_op", "c10d::_reduce_scatter_base_", [[8, 4], [64, 4], [], [], []], 20),
            shaped("user_annotation", "nccl:_reduce_scatter_base", [[64, 4]], 21),
            shaped("cpu_op", "c10d::allreduce_", [[], [], [], []], 30),
            shaped("user_annotation", "nccl:all_reduce", [[366336]], 31))), [(256, 21), (366336, 31)])

    def test_a_damaged_size_is_an_error(self):  # one good reduction beside it does not hide it
        good = collective("allreduce", 8, 10)
        for value in ("2000", "abc", -5, 250000000001, 2.5, None, 10 ** 39, True):
            with self.subTest(value=value):
                bad = dict(collective("allreduce", value, 40), name="gloo:all_reduce")
                self.refused(kineto(good, bad), f'event 2 of those with ph X (name "gloo:all_reduce", ts 40): In msg nelems is '
                             f"{json.dumps(value)}, and must be a whole number from 0 to 250000000000, without quotes; correct it")
        for value in ([["2000"]], [[-5, 3]], [[500001, 500001]], "abc", [[[[[1]]]]]):
            with self.subTest(value=value):
                self.refused(kineto(good, shaped("cpu_op", "gloo:all_reduce", value, 40)), "Input Dims is "
                             + json.dumps(value, separators=(",", ":")) + ", and must be lists of numbers from 0 without quotes")
        self.refused(kineto(good, shaped("cpu_op", "c10d::allreduce_", [[["7"]], []], 40)),
                     '(name "c10d::allreduce_", ts 40): Input Dims is [["7"]], and must')

    def test_empty_tensors_and_other_collectives_are_no_mistakes(self):
        self.assertEqual(self.layers(kineto(
            step(1, 0, 100), collective("allreduce", 8, 10), collective("allreduce", 0, 20), collective("barrier", 0, 20),
            {"ph": "X", "name": "record_param_comms", "ts": 3, "dur": 1, "args": {"Collective name": "wait", "In msg nelems": "none"}},
            shaped("cpu_op", "gloo:all_reduce", [[0, 4]], 30))), [(8, 10)])
        self.refused(kineto(collective("allreduce", 0, 20)), "1 events of reductions, all with In msg nelems 0")

    def test_a_damaged_time_is_an_error(self):
        good = collective("allreduce", 8, 10)
        for times, words in (({"ts": "0", "dur": 50}, 'ts "0"): ts is "0", and must be a number of microseconds, without quotes'),
                             ({"dur": 50}, "ts missing): ts is missing, and must be a number of microseconds"),
                             ({"ts": 10 ** 400, "dur": 50}, "and must be a number of microseconds"),
                             ({"ts": -1, "dur": "50"}, 'dur is "50", and must be a number of microseconds from 0, without quotes'),
                             ({"ts": 0, "dur": -1}, "dur is -1, and must be"), ({"ts": 0}, "dur is missing, and must be")):
            with self.subTest(times=words):
                self.refused(kineto(good, {"ph": "X", "name": "ProfilerStep#1", **times}),
                             'event 2 of those with ph X (name "ProfilerStep#1", ts ', words)
        self.assertEqual(self.layers(kineto(good, step(1, -1.5, 50))), [(8, 11.5)])


class Execution(Convert):
    def trace(self, *nodes, schema="1.1.0"):
        return {"schema": schema, "pid": 177708, "nodes": list(nodes), "finish_ts": 387307139}

    def node(self, number, name, shapes):
        return {"id": number, "name": name, "ctrl_deps": 2, "inputs": {"values": [], "shapes": shapes, "types": ["GenericList[Tensor(float)]"]},
                "outputs": {"values": [], "shapes": [], "types": []}, "attrs": [{"name": "rf_id", "type": "uint64", "value": 115}]}

    def test_the_middle_step_is_replayed_without_times(self):  # a node comes behind its children
        self.assertEqual(self.layers(self.trace(
            self.node(10, "c10d::allreduce_", [[[7]], [], [], [], []]), self.node(3, "ProfilerStep#5", []),
            self.node(50, "c10d::allreduce_", [[[2431040]], [], [], [], []]),
            self.node(42, "c10d::broadcast_", [[[53120]], [], [], [], []]),
            self.node(45, "c10d::allreduce_", [[[64, 7], [64]], [], [], [], []]), self.node(40, "ProfilerStep#6", []),
            self.node(60, "ProfilerStep#7", []), schema="1.1.1-chakra.0.0.4")), [(512, 0), (2431040, 0)])
        self.assertIn("ProfilerStep#6, the middle of 2 steps with reductions; without times", self.about)

    def test_the_first_schema_is_read_too(self):
        self.assertEqual(self.layers(self.trace(
            {"name": "c10d::allreduce_", "id": 1245, "rf_id": 902, "parent": 1237,
             "inputs": [[[1244, 1156, 0, 394241, 4, "cuda:0"]], -1], "input_shapes": [[[394241]], [], [], []], "output_shapes": []},
            {"name": "c10d::_reduce_scatter_base_", "id": 1300, "inputs": [], "input_shapes": [[8, 4], [64, 4], [], [], []]},
            schema="1.0.1")), [(394241, 0), (256, 0)])

    def test_another_schema_is_an_error(self):  # its nodes may look damaged: the schema is the error
        for schema in ("1.0.0", "1.0.3-chakra.0.0.4", "1.1", "1.1.2"):
            self.assertEqual(self.layers(self.trace(self.node(1, "c10d::allreduce_", [[[4]], []]), schema=schema)), [(4, 0)])
        for schema in ("9.9", "1.2.0-chakra.0.0.4", "2.0.1", "1.10.0", "", 1.1):
            for shapes in ([[[4]], []], [["4"], []]):
                with self.subTest(schema=schema):
                    self.refused(self.trace(self.node(1, "c10d::allreduce_", shapes), schema=schema),
                                 f"an execution trace of PyTorch with schema {json.dumps(schema)}: schemas 1.0 and 1.1 are read; record")

    def test_a_damaged_shape_or_id_is_an_error(self):
        good = self.node(1, "c10d::allreduce_", [[[4]], []])
        self.refused(self.trace(good, self.node(2, "c10d::allreduce_", [[["2000"]], []])),
                     'node 2 ("c10d::allreduce_"): shapes is [["2000"]], and must be lists of numbers from 0')
        self.refused(self.trace(good, self.node(2, "c10d::allreduce_", [[[-3]], []])), "shapes is [[-3]], and must be")
        self.assertEqual(self.layers(self.trace(good, self.node(2, "c10d::allreduce_", [[], ["x"]]))), [(4, 0)])
        for number in ("2", -2, 2.5, None):
            self.refused(self.trace(good, self.node(number, "aten::mm", [])), f'node 2 of the file (name "aten::mm"): id is '
                         f"{json.dumps(number)}, and must be a whole number from 0 to 18446744073709551615, without quotes; correct it")


class Chakra(Convert):
    def test_start_times_tell_when_a_reduction_is_ready(self):
        self.assertEqual(self.layers(chakra(
            {"version": "0.0.4"}, {"name": "root", "type": "METADATA_NODE"},
            {"id": "1", "type": "COMP_NODE", "startTimeMicros": "5000", "durationMicros": "40"},
            reduction("3", "4096", startTimeMicros="5100", durationMicros="9"),
            {"id": "2", "type": "COMM_COLL_NODE", "startTimeMicros": "5050",
             "attr": [{"name": "is_cpu_op", "boolVal": False}, {"name": "comm_type", "stringVal": "REDUCE_SCATTER"},
                      {"name": "comm_size", "uint64Val": "10"}]},
            {"id": "4", "type": "COMM_COLL_NODE", "startTimeMicros": "5051",
             "attr": [{"name": "comm_type", "int64Val": "5"}, {"name": "comm_size", "int64Val": "64"}]})), [(3, 50), (1024, 100)])
        self.assertEqual(self.about, "Chakra trace, by its start times")

    def test_without_start_times_dependencies_do(self):  # the reduction before another one takes no time
        self.assertEqual(self.layers(chakra(
            {}, {"id": "1", "type": "COMP_NODE", "durationMicros": "70"},
            {"id": "2", "type": "COMP_NODE", "durationMicros": "30", "dataDeps": ["1"]},
            {"id": "3", "type": "COMP_NODE", "durationMicros": "10", "dataDeps": ["1"]},
            *(reduction(number, f"{number}00", durationMicros="1000", dataDeps=before)
              for number, before in (("8", ["2", "3"]), ("4", ["3"]), ("6", ["8"]))))), [(100, 80), (150, 100), (200, 100)])

    def test_callers_are_no_dependencies(self):
        """The converter writes the caller of an operator as ctrlDeps. A caller waits for its last part: both lists are a
        circle. It also drops callers."""
        self.assertEqual(self.layers(chakra(
            {"attr": [{"name": "schema", "stringVal": "1.0.1"}]},
            {"id": "3254", "name": "c10d::allreduce_", "type": "COMM_COLL_NODE", "ctrlDeps": ["3255", 99], "durationMicros": "85",
             "attr": [{"name": "is_cpu_op", "boolVal": True}]},
            {"id": "3255", "name": "c10d::allreduce_", "type": "COMM_COLL_NODE", "dataDeps": ["3254"], "durationMicros": "79"},
            reduction("3256", "8196000", ctrlDeps=["3255"], dataDeps=["3254"]))), [(2049000, 85)])

    def test_a_damaged_comm_size_is_an_error(self):
        for size in ("abc", "-4", -4, "4611686018427387904", 4611686018427387904, "1000000000001", "", 4.5):
            self.refused(chakra(reduction("3", "4096", name="x"), reduction("4", size, name="x")), f'node 4 ("x"): comm_size is '
                         f"{json.dumps(size)}, and must be a whole number of bytes from 0 to 1000000000000")
        self.assertEqual(self.layers(chakra(reduction("3", "4096"), reduction("4", "0"))), [(1024, 0)])

    def test_a_damaged_number_is_an_error(self):
        def trace(number, **fields):
            return chakra({"id": "1", "type": "COMP_NODE", "durationMicros": 7}, reduction(number, "64", name="x", **fields))
        self.assertEqual(self.layers(trace("2", dataDeps=["1"], durationMicros="0", ctrlDeps=[])), [(16, 7)])
        for value in ("abc", "", "-5", -5, 2.5, None, [7], "18446744073709551616"):
            text = json.dumps(value)
            with self.subTest(value=value):
                self.refused(trace(value, dataDeps=["1"]),
                             f'node 2 of the file (name "x"): id is {text}, and must be a whole number from 0 to ')
                for field in ("startTimeMicros", "durationMicros"):
                    self.refused(trace("2", **{field: value}), f'node 2 ("x"): {field} is {text}, and must be a whole number from 0 to 1000')
                for field in ("dataDeps", "ctrlDeps"):
                    self.refused(trace("2", **{field: ["1", value]}), f'node 2 ("x"): an item of {field} is {text}, and must be a whole number')
        self.refused(trace("2", ctrlDeps="1"), 'node 2 ("x"): ctrlDeps is "1", and must be a list of the ids of nodes')

    def test_a_node_that_is_missing_or_there_twice_is_an_error(self):
        for start in ({}, {"startTimeMicros": "5000"}):
            self.refused(chakra(reduction("8", "4", dataDeps=["8000", "9"], **start), reduction("8000", "4")),
                         "node 8: an item of dataDeps is 9, and must be the id of a node of this trace; correct it")
        self.refused(chakra(reduction("8", "4"), reduction(8, "4", name="x")), 'node 8 ("x"): id is 8 again, and must be the number of one node')


if __name__ == "__main__":
    unittest.main()
