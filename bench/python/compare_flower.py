#!/usr/bin/env python3
"""Time and bytes of a round of Flower: with its own FedAvg, and with gradrail as the transport.

Each run has a SuperLink, SuperNodes and a ServerApp of Flower, and the same ClientApp. Runs take turns. The bytes are those
of the loopback interface; `unshare -n` gives the program an interface of its own. The train function adds random numbers,
because Flower compresses arrays, and sends equal ones once.
"""
import argparse
import json
import os
import pathlib
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "compare"
version = "1.0.0"
description = "Rounds of federated averaging"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "gradrail"
[tool.flwr.app.components]
serverapp = "compare.app:server"
clientapp = "compare.app:client"
[tool.flwr.app.config]
"""
APP = """
import json, pathlib, time
import gradrail.flower
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
server = ServerApp()
client = ClientApp()
LOCAL = {"transports": "tcp"}

def loopback():
    line, = (line for line in pathlib.Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split()[1])

def noise(shape):
    return np.random.default_rng().random(shape, np.float32)

def train(message, context):
    arrays = {name: Array(array.numpy() + noise(array.shape)) for name, array in message.content["arrays"].items()}
    return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 10})}), reply_to=message)

mod = gradrail.flower.transport(**LOCAL)
client.train(mods=[lambda message, context, rest: mod(message, context, rest) if "gradrail" in message.content else
                   rest(message, context)])(train)

@server.main()
def main(grid, context):
    config, marks = context.run_config, []
    common = {"fraction_evaluate": 0.0, "min_train_nodes": config["clients"], "min_available_nodes": config["clients"]}
    if config["servers"]:
        strategy = gradrail.flower.FedAvg(config["servers"], config["clients"], local=LOCAL, **common)
    else:
        strategy = FedAvg(**common)
    configure, aggregate = strategy.configure_train, strategy.aggregate_train

    def configured(*arguments):
        marks.append((time.monotonic(), loopback()))
        return configure(*arguments)

    def aggregated(*arguments):
        result = aggregate(*arguments)
        marks.append((time.monotonic(), loopback()))
        return result

    strategy.configure_train, strategy.aggregate_train = configured, aggregated
    arrays = ArrayRecord({f"w{i}": Array(noise(config["elements"] // 25)) for i in range(25)})
    result = strategy.start(grid, arrays, num_rounds=config["rounds"])
    mean = float(result.arrays["w7"].numpy().mean())
    assert abs(mean - 0.5 * (1 + config["rounds"])) < 0.01, f"wrong average: {mean}"
    pathlib.Path(config["output"]).write_text(json.dumps(marks))
"""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def version(package):
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


class Federation:
    """The processes of Flower, with the ClientApps of this folder."""

    def __init__(self, folder, clients):
        self.folder = folder
        self.bin = pathlib.Path(sys.executable).parent
        self.environment = {
            **os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}", "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0", "PYTHONPATH": str(ROOT / "worker/python"),
            "GRADRAIL_LIBRARY": str(ROOT / "build/release/lib/libgradrail.so.1")
        }
        address = f"127.0.0.1:{free_port()}"
        (folder / "home").mkdir()
        (folder / "home/config.toml").write_text(f'[superlink]\ndefault = "local"\n[superlink.local]\naddress = "{address}"\n'
                                                 "insecure = true\n")
        self.tasks = [self.start("flower-superlink", "--insecure", "--port", address.split(":")[1],
                                 "--disable-runtime-dependency-installation")]
        time.sleep(6)
        for _ in range(clients):
            self.tasks.append(self.start("flower-supernode", "--insecure", "--superlink", address, "--port", free_port()))
        time.sleep(4)

    def start(self, program, *flags):
        log = open(self.folder / f"{program}.log", "ab")
        return subprocess.Popen([self.bin / program, *map(str, flags)], stdout=log, stderr=log, env=self.environment)

    def run(self, app, within):
        """Runs the app. Returns the marks that its ServerApp has written."""
        output = app / "marks.json"
        output.unlink(missing_ok=True)
        subprocess.run([self.bin / "flwr", "run", app, "local"], env=self.environment, check=True, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + within
        while not output.exists() or not output.read_text():
            if time.monotonic() > deadline:
                raise SystemExit((self.folder / "flower-superlink.log").read_text()[-3000:])
            time.sleep(0.2)
        return json.loads(output.read_text())

    def end(self):
        for task in reversed(self.tasks):
            task.send_signal(signal.SIGTERM)
        for task in self.tasks:
            task.wait()


def write_app(folder, settings):
    (folder / "compare").mkdir(parents=True, exist_ok=True)
    (folder / "compare/__init__.py").touch()
    (folder / "compare/app.py").write_text(APP)
    (folder / "pyproject.toml").write_text(PROJECT + "\n".join(f"{key} = {json.dumps(value)}" for key, value in settings.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", required=True, help="program gradrail")
    parser.add_argument("--elements", type=int, default=25_000_000)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    rows = {"flower": [], "gradrail": []}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        federation = Federation(folder, options.clients)
        try:
            for _ in range(options.repeat):
                for kind, found in rows.items():
                    servers, task = "", None
                    if kind == "gradrail":
                        servers = f"127.0.0.1:{free_port()}"
                        task = subprocess.Popen([options.binary, "train", "--job_name", "ps", "--task_index", "0", "--ps_hosts",
                                                 servers, "--worker_hosts", "localhost:1"], stderr=subprocess.DEVNULL)
                    app = folder / kind
                    write_app(app, {"elements": options.elements, "clients": options.clients, "rounds": options.rounds,
                                    "servers": servers, "output": str(app / "marks.json")})
                    marks = federation.run(app, 300)
                    # The first round also starts the clients' processes for the first time.
                    rounds = list(zip(marks[2::2], marks[3::2]))
                    found.append((statistics.median(end[0] - begin[0] for begin, end in rounds),
                                  statistics.median(end[1] - begin[1] for begin, end in rounds)))
                    print(f"{kind}: {found[-1][0]:.2f} s, {found[-1][1] / 1e6:.1f} MB", file=sys.stderr, flush=True)
                    if task:
                        task.wait(60)
        finally:
            federation.end()
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    print(f"commit {commit.stdout.strip()}, flwr {version('flwr')}, numpy {version('numpy')}, Python {platform.python_version()}")
    print(f"{os.cpu_count()} CPUs, {platform.machine()}, Linux {platform.release()}, load {os.getloadavg()[0]:.1f}")
    print(f"{options.elements} elements, {options.clients} clients, {options.rounds - 1} rounds after the first in each run")
    for kind, found in rows.items():
        seconds, sizes = ([row[i] for row in found] for i in range(2))
        print(f"{kind:9} median {statistics.median(seconds):6.2f} s  {statistics.median(sizes) / 1e6:7.1f} MB  runs: "
              + ", ".join(f"{row[0]:.2f} s {row[1] / 1e6:.1f} MB" for row in found))


if __name__ == "__main__":
    main()
