"""The package in one process with other packages that have their own protobuf and gRPC, in each order of the imports.

GRADRAIL_TEST_PYTHON is the Python under test, by default /usr/bin/python3. If the wheel is installed for it, this test
uses the wheel; else it uses the build.
"""
import itertools
import os
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/system"))
import cluster  # noqa: E402

PYTHON = os.environ.get("GRADRAIL_TEST_PYTHON", "/usr/bin/python3")
DEADLINE = 240 * cluster.PATIENCE

# Statements for each package, which run before and after the exchange.
USES = {
    "torch": "assert float(torch.nn.Linear(2, 1, bias=False)(torch.zeros(1, 2))) == 0",
    "grpc": """
from concurrent import futures
server = grpc.server(futures.ThreadPoolExecutor(1))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
    grpc.channel_ready_future(channel).result(timeout=60)
server.stop(None)""",
    "google.protobuf.struct_pb2": """
message = google.protobuf.struct_pb2.Struct()
message["a"] = 1.5
assert google.protobuf.struct_pb2.Struct.FromString(message.SerializeToString())["a"] == 1.5""",
    "tensorflow": "assert float(tensorflow.reduce_sum(tensorflow.constant([1.0, 2.0]))) == 3",
}
EXCHANGE = """
import numpy
with gradrail.join({"w": (3,)}, learning_rate=1.0, mode="sync") as client:
    client.start()
    for _ in range(3):
        client.gradients["w"] = numpy.ones(3)
        client.exchange()
        client.wait()
    assert client.parameters["w"].tolist() == [-3, -3, -3], client.parameters["w"]
"""
TRAINING = """
import gradrail.torch
model = torch.nn.Linear(3, 1)
with gradrail.torch.Exchange(model, optimizer="adamw", lr=0.1, mode="sync") as exchange:
    losses = []
    for _ in range(100):
        x = torch.randn(32, 3)
        losses.append(((model(x) - x.sum(1, keepdim=True)) ** 2).mean())
        losses[-1].backward()
        exchange.step()
assert losses[-1] < 0.1 * losses[0], losses
"""


def has(module):
    probe = f"import importlib.util; import sys; sys.exit(importlib.util.find_spec({module.split('.')[0]!r}) is None)"
    return subprocess.run([PYTHON, "-c", probe], check=False).returncode == 0


class Imports(cluster.ClusterTest):
    def setUp(self):
        super().setUp()
        if not has("numpy"):
            cluster.skip(f"NumPy is not installed for {PYTHON}")
        self.environment = {"TF_CPP_MIN_LOG_LEVEL": "2"}
        self.program = cluster.binary()
        self.is_wheel = has("gradrail")
        if self.is_wheel:
            self.program = str(pathlib.Path(PYTHON).parent / "gradrail")
        else:
            self.environment.update(cluster.python_environment())

    def check(self, *others):
        for module in others:
            if not has(module):
                cluster.skip(f"{module} is not installed for {PYTHON}")
        for number, order in enumerate(itertools.permutations(("gradrail", *others))):
            program = "\n".join([f"import {module}" for module in order] + [USES[module] for module in others]
                                + [TRAINING if "torch" in others else EXCHANGE] + [USES[module] for module in others] + ["print('both work')"])
            task = self.launch(f"order{number}", [self.program, "run", "--", PYTHON, "-c", program], self.environment)
            self.assertEqual(task.code(DEADLINE), cluster.GOOD, f"{order}:\n{task.transcript()}")
            self.assert_says(task, r"both work")

    def test_with_torch(self):
        self.check("torch")

    def check_wheel(self, *others):
        # A build uses the shared libraries of the host, which do not agree with those of each package.
        if not self.is_wheel:
            cluster.skip(f"the wheel is not installed for {PYTHON}")
        self.check(*others)

    def test_with_grpc(self):
        self.check_wheel("grpc")

    def test_with_protobuf(self):
        self.check_wheel("google.protobuf.struct_pb2")

    def test_with_tensorflow(self):
        self.check_wheel("tensorflow")

    def test_with_torch_and_grpc(self):
        self.check_wheel("torch", "grpc")

    def test_with_tensorflow_and_grpc(self):
        self.check_wheel("tensorflow", "grpc")

    def test_with_torch_and_tensorflow(self):
        self.check_wheel("torch", "tensorflow")

    def test_with_torch_tensorflow_and_grpc(self):
        self.check_wheel("torch", "tensorflow", "grpc")


if __name__ == "__main__":
    unittest.main()
