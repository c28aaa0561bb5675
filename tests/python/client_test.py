"""The client of the Python package: exchanges, errors and signals."""
import pathlib
import signal
import time
import unittest

import cluster
import package

# Each worker can compute the gradients of all workers.
GRADIENTS = """
WORKERS, STEPS = 2, 20
SHAPES = {"w": (300, 7), "b": (7,), "one": ()}

def gradient(worker, step, name):
    rng = np.random.default_rng([worker, step, list(SHAPES).index(name)])
    return rng.standard_normal(SHAPES[name]).astype(np.float32)
"""

# A program that is soon blocked after it prints "begin". Ctrl-C must end the call.
BLOCKED = """
{before}
try:
    print("begin", flush=True)
    {call}
except KeyboardInterrupt:
    print("interrupted", flush=True)
    {after}
    os._exit(0)
print("the call returned", flush=True)
"""


def thread_states(pid):
    return {stat.read_text().rsplit(")", 1)[1].split()[0] for stat in pathlib.Path(f"/proc/{pid}/task").glob("*/stat")}


class Exchanges(package.PackageTest):
    def test_async_steps_apply_each_gradient_once(self):
        self.good_run(GRADIENTS + """
with gradrail.join(SHAPES, learning_rate=0.01, mode="async", bucket_bytes=1024) as client:
    client.start()
    for step in range(STEPS):
        for name in SHAPES:
            client.gradients[name] = gradient(client.task_index, step, name)
        client.exchange()
        client.wait()
    client.barrier("done")
    client.pull()
    assert client.position == STEPS and client.global_step == WORKERS * STEPS, client.global_step
    for name in SHAPES:
        total = sum(gradient(worker, step, name) for worker in range(WORKERS) for step in range(STEPS))
        np.testing.assert_allclose(client.parameters[name], -np.float32(0.01) * total, rtol=0, atol=2e-6)
""")

    def test_a_pull_replaces_what_the_program_has_written(self):
        # Over shm the server took the memory of the worker for current.
        for transport in ("shm", "tcp"):
            for returns in ("fp32", "delta"):
                with self.subTest(transport=transport, returns=returns):
                    self.good_run(f"""
with gradrail.join({{"w": np.ones((300, 7)), "b": 3}}, fragments={{"f": "b"}}, transports={transport!r}, fallback=False,
                   return_format={returns!r}, learning_rate=1.0, mode="sync") as client:
    client.start()
    client.gradients["w"][:] = 0.5
    for step in range(3):
        for name, values in client.parameters.items():
            values *= 0.9
        client.step("f" if step else None)
        client.pull()
        assert (client.parameters["w"] == 0.5).all() and not client.parameters["b"].any(), (step, client.parameters)
""", workers=1)

    def test_statistics(self):
        for push, element, returns in (("fp32", 4, "fp32"), ("bf16", 2, "delta")):
            self.good_run("""
with gradrail.join({"w": (1000,)}, push=os.environ["PUSH"], return_format=os.environ["RETURN"]) as client:
    client.start()
    before = client.stats()
    for _ in range(10):
        client.exchange()
        client.wait()
    after = client.stats()
    assert after["exchanges"] - before["exchanges"] == 10, (before, after)
    pushed = after["bytes_pushed"] - before["bytes_pushed"]
    gradients = 10 * 1000 * int(os.environ["ELEMENT"])
    assert gradients <= pushed <= gradients + 10 * 100, pushed
    returned, in_fp32 = (after[name] - before[name] for name in ("bytes_returned", "bytes_returned_fp32"))
    assert in_fp32 == 10 * (4000 + 64), in_fp32
    # The first answer to a push is whole. Then nothing changes: 16 masks.
    assert returned == (in_fp32 if os.environ["RETURN"] == "fp32" else 2000 + 9 * 128 + 10 * 64), returned
    assert 0 < after["exchange_seconds"]["min"] <= after["exchange_seconds"]["max"] < 10, after
    assert after["global_step"] == client.global_step == 10
    assert len(after["paths"]) == 1 and "shm" in after["paths"][0], after["paths"]
""", workers=1, environment={"PUSH": push, "ELEMENT": str(element), "RETURN": returns})

    def test_arrays_are_valid_after_the_client(self):
        """A client that the program drops leaves. Its memory ends with the last array."""
        self.good_run("""
import gc
client = gradrail.join({"w": (1000,), "b": (3,)}, mode="sync")
client.start()
if client.task_index == 0:
    for step in range(9):  # the other worker is not awaited
        client.exchange()
        client.wait()
    client.leave()
    open(os.environ["FLAG"], "w").close()
b, client = client.parameters["b"], None
gc.collect()
b += 1
assert b.tolist() == [1, 1, 1]
garbage = [bytearray(100) for _ in range(100000)]
b = None
gc.collect()
deadline = time.monotonic() + 20
while not os.path.exists(os.environ["FLAG"]):  # this process ends after the steps of the other one
    assert time.monotonic() < deadline, "the other worker waits for the dropped client"
    time.sleep(0.01)
""", environment={"FLAG": str(self.folder / "flag")})

    def test_two_workers_may_save_at_once(self):
        """A chief that is started again returns while the chief of the meantime saves."""
        saved = self.folder / "saved"
        self.good_run("""
with gradrail.join({"w": (200000,)}, learning_rate=0.1, mode="sync") as client:
    client.start()
    for step in range(20):
        client.exchange()
        client.wait()
        client.save_checkpoint()
""", "--ps", 2, "--checkpoint_dir", saved)
        self.assertNotEqual(list(saved.glob("gradrail-000000000020-*.ckpt")), [])

    def test_checkpoints_are_begun_finished_and_restored(self):
        save = """
with gradrail.join({"w": (5,)}, learning_rate=1) as client:
    client.start()
    first = client.global_step
    assert client.parameters["w"].tolist() == [-float(first)] * 5, client.parameters["w"]
    def step():
        client.gradients["w"][:] = 1
        client.exchange()
        client.wait()
    step()
    client.begin_checkpoint()
    step()
    client.finish_checkpoint()
    client.finish_checkpoint()  # nothing was begun: no effect
    client.save_checkpoint()
    print("steps", first, client.global_step, flush=True)
"""
        flags = ("--checkpoint_dir", self.folder / "checkpoints")
        (self.folder / "checkpoints").mkdir()
        self.assert_says(self.good_run(save, *flags, workers=1), "steps 0 2")
        self.assert_says(self.good_run(save, *flags, workers=1), "steps 2 4")


class Errors(package.PackageTest):
    def test_errors_have_a_code_and_a_text(self):
        self.good_run("""
I, F = gradrail.InvalidArgument, gradrail.FailedPrecondition
assert issubclass(I, ValueError) and issubclass(gradrail.DeadlineExceeded, TimeoutError)
for words, tensors in (("must map names to shapes", [("w", 3)]), ("zero byte", {"a\\0": 3}),
                       ("must be a text, not int", {3: 3}), ("must be from 0", {"w": (-1,)}),
                       ("must be a whole number", {"w": (1.5,)}), ("is not a shape", {"w": None}), ("w", {"w": (0,)}),
                       ("no tensors", {}), ("w", {"w": (1 << 40, 1 << 40)}), ("not a valid text", {"\\ud800": 3})):
    refused(I, words, gradrail.join, tensors)
for words, options in (
    ("optimizer", {"optimizer": "adagrad"}), ("mode", {"mode": "fast"}), ("bucket_bytes", {"bucket_bytes": 100}),
    ("learning_rate", {"learning_rate": float("nan")}), ("learning_rate", {"learning_rate": 0}),
    ("learning_rate", {"learning_rate": -1}), ("learning_rate", {"learning_rate": 10 ** 400}),
    ("learning_rate", {"learning_rate": "0.1"}), ('optimizer="sgd"', {"momentum": 0}), ("epsilon", {"epsilon": 1e-60}),
    ("transports", {"transports": "pigeon"}), ("need ps_hosts", {"task_index": 0}),
    ("need ps_hosts", {"worker_hosts": "a:1"}), ("ps_hosts", {"ps_hosts": [3]}), ("ps_hosts", {"ps_hosts": "nonsense"}),
    ("task_index", {"ps_hosts": "localhost:1", "worker_hosts": "localhost:2", "task_index": -1}),
    ("rails: must be True or False, not 'off'", {"rails": "off"}), ("fallback: must be", {"fallback": "no"}),
    ("insecure: must be", {"insecure": None}), ("checksums: must be", {"checksums": 2}),
    ("join_timeout: must be 0 or more, not -1", {"join_timeout": -1}), ("join_timeout", {"join_timeout": None}),
    ("backup", {"backup_hosts": "localhost:1,localhost:2"})):
    refused(I, words, gradrail.join, {"w": (1,)}, **options)

client = gradrail.join({"w": (2, 3), "b": (3,)})
refused(F, "exchange() before start()", client.exchange)
refused(F, "step() before start()", client.step)
refused(F, "ready() before start()", client.ready, "w")
client.start()
refused(F, "already", client.start)
refused(I, "the tensors are w, b", client.ready, "c")
refused(I, "shape", client.parameters.__setitem__, "w", np.zeros(6))
try:
    client.gradients["c"]
    raise AssertionError("no KeyError")
except KeyError as error:
    assert "w, b" in str(error)
refused(F, "checkpoint", client.save_checkpoint)
client.ready("w")
refused(F, "ready before", client.ready, "w")
refused(F, "only 1 of 2", client.wait)
client.exchange()
refused(F, "under way", client.exchange)
refused(F, "step() before wait(): an exchange is under way", client.step)
client.wait()
client.step()
client.finish_steps()
for call in (client.step, client.exchange, lambda: client.ready("w")):  # the shards refused them, and the client was lost
    refused(F, "after finish_steps(): this worker sends no further gradients", call)
client.pull()
client.barrier("still a member")
refused(I, "must be a text", client.barrier, 3)
refused(I, "must be a text", client.give_up, 3)
client.__exit__(None, None, None)  # the refused call has not ended the client: it leaves here
client.leave()
for call in (client.exchange, client.wait, client.step, client.pull, client.start, client.finish_steps):
    refused(F, "after leave()", call)
""", workers=1)

    def test_sizes_are_whole_numbers_of_any_kind(self):
        # np.prod(shape) has a shape itself, and made a tensor without dimensions.
        self.good_run("""
I = gradrail.InvalidArgument
for words, given in (("6.0 (float64) is not a shape: use int()", np.prod((2.0, 3))), ("is not a shape", np.True_),
                     ("is not a shape", True), ("is not a shape", 6.0), ("a whole number, not True", (True, 2)),
                     ("a whole number, not 2.0", (2.0, 3)), ("can be a size or an initial value", np.array(6))):
    refused(I, words, gradrail.join, {"w": given})
hosts = {name: os.environ["GRADRAIL_" + name.upper()] for name in ("ps_hosts", "worker_hosts")}
for name in ("task_index", "streams", "bucket_bytes", "momentum_every"):
    refused(I, f"{name}: must be a whole number, not True", gradrail.join, {"w": 1}, **{**hosts, name: True})
client = gradrail.join({"product": np.prod((2, 3)), "byte": np.uint8(3), "list": [np.int64(2), np.int32(3)], "scalar": np.array(0.5),
                        "nothing": ()}, task_index=np.int64(0), bucket_bytes=np.uint16(256), streams=np.array(1), **hosts)
client.start()
assert {name: values.shape for name, values in client.parameters.items()} == {
    "product": (6,), "byte": (3,), "list": (2, 3), "scalar": (), "nothing": ()}
assert client.parameters["scalar"] == 0.5 and not client.parameters["product"].any()
client.leave()
""", workers=1)

    def test_tensors_and_options_of_a_client_cannot_be_replaced(self):
        # The library never saw the new arrays.
        self.good_run("""
client = gradrail.join({"w": (2,)}, learning_rate=1)
client.start()
for name in ("parameters", "gradients"):
    refused(AttributeError, f'write into its arrays, as in client.{name}["w"][:]', setattr, client, name, {"w": np.ones(2)})
for name in ("lr", "learning_rate", "momentum", "mode"):
    refused(AttributeError, "fixed for the run (join again; set_learning_rate(rate) sets the rate)", setattr, client, name, 0.5)
client.gradients["w"] = [1, 1]
client.gradients["w"] += 1
client.step()
assert client.parameters["w"].tolist() == [-2, -2], client.parameters
client.leave()
""", workers=1)

    def test_arrays_of_too_many_dimensions_are_refused(self):
        # NumPy refused them after the worker had joined.
        self.good_run("""
for shape in ((1,) * 65, (2,) * 300):
    refused(gradrail.InvalidArgument, "tensor 'w': maximum supported dimension", gradrail.join, {"w": shape})
try:
    np.empty((1,) * 33)
except ValueError:
    refused(gradrail.InvalidArgument, "join it with fewer dimensions", gradrail.join, {"w": (1,) * 33})
client = gradrail.join({"w": (1,) * 32})
assert client.parameters["w"].ndim == 32
client.leave()
""", workers=1)

    def test_no_cluster_in_the_environment(self):
        task = self.start_program('refused(gradrail.InvalidArgument, "gradrail run", gradrail.join, {"w": (1,)})')
        self.assert_ends(task, cluster.GOOD)

    def test_wrong_variables_are_named(self):
        for name, value in (("GRADRAIL_TASK_INDEX", "x"), ("GRADRAIL_TASK_INDEX", "-1"), ("GRADRAIL_PS_HOSTS", "a b"),
                            ("GRADRAIL_REJOIN_TIMEOUT", "soon"), ("GRADRAIL_BACKUP_HOSTS", "localhost:3,localhost:4")):
            with self.subTest(name=name, value=value):
                environment = {"GRADRAIL_PS_HOSTS": "localhost:1", "GRADRAIL_WORKER_HOSTS": "localhost:2",
                               "GRADRAIL_TASK_INDEX": "0", name: value}
                task = self.start_program(f"refused(gradrail.InvalidArgument, {name!r}, gradrail.join, {{'w': 1}})",
                                          environment)
                self.assert_ends(task, cluster.GOOD)

    def test_a_missing_library_is_named(self):
        task = self.start_program("", {"GRADRAIL_LIBRARY": "/nowhere/libgradrail.so.1"})
        self.assert_ends(task, 1, says=["/nowhere/libgradrail.so.1.*GRADRAIL_LIBRARY"])

    def test_a_join_after_the_end_of_the_run_says_so(self):
        # The server answers as long as its process exists.
        self.good_run("""
gradrail.join({"w": 1}).leave()
try:
    gradrail.join({"w": 1}, **{name: os.environ["GRADRAIL_" + name.upper()] for name in ("ps_hosts", "worker_hosts")}, join_timeout=1)
except (gradrail.FailedPrecondition, gradrail.DeadlineExceeded, gradrail.Unavailable) as error:
    assert "the run has ended" in str(error) or "it ends when all workers of its run have left" in str(error), error
else:
    raise AssertionError("the second join() has succeeded")
""", workers=1)

    def test_a_context_manager_leaves(self):
        """The other worker does not wait for gradients of the one that left."""
        self.good_run("""
with gradrail.join({"w": (1,)}, mode="sync") as client:
    client.start()
    for step in range(3 if client.task_index else 9):
        client.exchange()
        client.wait()
refused(gradrail.FailedPrecondition, "leave", client.wait)
""")

    def test_a_context_manager_gives_up_after_an_error(self):
        task = self.run_workers("""
try:
    with gradrail.join({"w": (1,)}, mode="sync") as client:
        client.start()
        for step in range(9):
            client.exchange()
            client.wait()
            if client.task_index:
                raise RuntimeError("the loss is NaN")
except RuntimeError as error:
    assert str(error) == "the loss is NaN"
    refused(gradrail.FailedPrecondition, "step() after give_up(), with which this worker has reported a failure: join again",
            client.step)
""", environment={"GRADRAIL_LOG": "info"})
        self.assert_ends(task, cluster.GOOD)
        self.assert_says(task, "RuntimeError: the loss is NaN")

    def test_a_program_without_leave_leaves_at_its_end(self):
        task = self.good_run("""
client = gradrail.join({"w": (1,)}, mode="sync")
client.start()
for step in range(3 if client.task_index else 9):
    client.exchange()
    client.wait()
""")
        self.assertFalse(task.has("was lost"), task.transcript())


class Interruption(package.PackageTest):
    def assert_interrupted(self, server, environment, call, before="", after="pass", stop_server=False):
        task = self.start_program(BLOCKED.format(before=before, call=call, after=after), environment)
        task.wait_for("begin", cluster.START)
        if stop_server:
            server.signal(signal.SIGSTOP)
            cluster.wait_until(lambda: thread_states(server.pid) == {"T"}, cluster.START, server.transcript)
            task.signal(signal.SIGUSR1)
        time.sleep(0.3)  # no event exists: the call blocks meanwhile, and an interrupt before it ends the program too
        task.signal(signal.SIGINT)
        self.assert_ends(task, cluster.GOOD, 20 * cluster.PATIENCE, says=["(?m)^interrupted"])

    def test_in_calls_that_wait_for_other_workers(self):
        join = "client = gradrail.join({'w': (1,)}, mode='sync')"
        start = join + "; client.start()"
        for call, index, before in (("client.start()", 1, join), ("client.exchange(); client.wait()", 0, start),
                                    ("client.barrier('all')", 0, start)):
            with self.subTest(call=call):
                server, environment = self.start_server()
                self.assert_interrupted(server, environment(index), call, before)
                server.end()

    def test_in_join(self):
        port, = cluster.free_ports(1)
        hosts = {"GRADRAIL_PS_HOSTS": f"127.0.0.1:{port}", "GRADRAIL_WORKER_HOSTS": "localhost:1",
                 "GRADRAIL_TASK_INDEX": "0"}
        self.assert_interrupted(None, hosts, "gradrail.join({'w': (1,)})")

    def assert_interrupted_with_suspended_server(self, call, after="pass"):
        server, environment = self.start_server(workers=1)
        before = """
flag = threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: flag.set())
client = gradrail.join({'w': (1,)})
client.start()
"""
        self.assert_interrupted(server, environment(0), f"flag.wait(); {call}", before, after, stop_server=True)
        server.end()

    def test_in_exchanges_with_a_suspended_server(self):
        for call in ("client.pull()", "client.exchange(); client.wait()", "client.step()"):
            with self.subTest(call=call):
                # The interrupt has ended the call, and not the loss (Unavailable), which is noticed after six seconds.
                self.assert_interrupted_with_suspended_server(call, "refused(gradrail.Cancelled, '', client.wait)")

    def test_in_a_request_to_a_suspended_server(self):
        """The client notices after six seconds that the server does not answer."""
        self.assert_interrupted_with_suspended_server("client.barrier('x')")

    def test_later_calls_are_cancelled(self):
        server, environment = self.start_server()
        self.assert_interrupted(
            server, environment(0), "client.exchange(); client.wait()",
            "client = gradrail.join({'w': (1,)}, mode='sync'); client.start()",
            "refused(gradrail.Cancelled, '', client.wait); client.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)")

    def test_a_handler_that_returns_does_not_end_the_call(self):
        server, environment = self.start_server()
        program = """
seen = []
signal.signal(signal.SIGUSR1, lambda *_: (seen.append(1), print("handled", flush=True)))
client = gradrail.join({"w": (1,)}, mode="sync")
client.start()
print("begin", flush=True)
client.exchange()
client.wait()
client.leave()
assert seen == [1]
"""
        first = self.start_program(program, environment(0), "worker/0")
        first.wait_for("begin", cluster.START)
        time.sleep(0.5)
        first.signal(signal.SIGUSR1)
        first.wait_for("handled", 2 * cluster.PATIENCE)
        second = self.start_program(program.replace("print(\"begin\", flush=True)", "seen.append(1)"), environment(1),
                                    "worker/1")
        self.assert_ends(first, cluster.GOOD)
        self.assert_ends(second, cluster.GOOD)
        self.assert_ends(server, cluster.GOOD)


if __name__ == "__main__":
    unittest.main()
