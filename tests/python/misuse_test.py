"""Random calls of the Python package, most of them wrong: each succeeds or raises an exception. None ends or blocks the
process. GRADRAIL_TEST_SEED repeats a run with the seed that it printed."""
import os
import random
import unittest

import cluster
import package

CALLS = 1000

PROGRAM = """
import concurrent.futures, gc, random, warnings

seed = int(os.environ["MISUSE_SEED"])
rng = random.Random(seed)
warnings.simplefilter("ignore")  # a cast of complex numbers
NAMES = ["w", "b", "one", "no such tensor", "", 3, None]
SHAPES = {"w": (20, 30), "b": (7,), "one": ()}
VALUES = [np.zeros((20, 30)), np.zeros((20, 30), np.float32).T, np.zeros((30, 20), np.float16).T, np.arange(7), 1.5,
          np.ones(7, complex), np.array(["x"] * 7), np.array([None] * 7), np.zeros((20, 60), np.float32)[:, ::2],
          np.empty(0), "text", None, [[1, 2], [3]], float("nan"), np.array(3), np.zeros(7, bool), object()]
OPTIONS = [{}, {}, {}, {}, {"learning_rate": 0.1}, {"learning_rate": "fast"}, {"mode": "slow"}, {"bucket_bytes": 63},
           {"optimizer": "sgd", "momentum": None}, {"transports": "tcp"}, {"transports": ["shm"]}, {"momentum": 0},
           {"ps_hosts": "nonsense"}, {"ps_hosts": object()}, {"checksums": "yes"}, {"task_index": 2}, {"unknown": 1},
           {"secret_file": "/nowhere"}, {"join_timeout": -5}, {"bind_host": "999.1.1.1"}]
SCHEMAS = [SHAPES, SHAPES, SHAPES, SHAPES, {}, {"w": -1}, {"w": "text"}, None, {"w": np.zeros(3, object)}, {"w": (1, 0)},
           {"w": [[1]]}, {"w": (2 ** 62, 4)}, {None: 1}, {"w" * 100000: 1}]
thread = concurrent.futures.ThreadPoolExecutor(1)
client, kept, names, counts = None, [], {}, {}

def join():
    global client
    if client is not None:
        client.give_up("replaced") if rng.random() < 0.5 else client.leave()
    client = gradrail.join(rng.choice(SCHEMAS), **rng.choice(OPTIONS))

def replace():
    global client
    client = None  # the collector ends it; `kept` may have its arrays
    gc.collect()
    client = gradrail.join(SHAPES)

def write(tensors):
    tensors[rng.choice(NAMES)] = rng.choice(VALUES)

def keep():
    array = client.parameters[rng.choice(NAMES)]
    kept.append(array[::rng.choice([1, 2, -1])] if array.ndim else array)
    del kept[:-5]

def touch():
    for array in kept:
        array *= 1.0
        array.sum()

def both():
    # Two threads call at once. One of them may be refused.
    other = thread.submit(call)
    try:
        call()
    finally:
        other.result(60)

def delete():
    rng.choice([lambda: client.parameters.__delitem__("w"), lambda: delattr(client, "nothing"), kept.clear])()

ACTIONS = {
    "join": (1, join), "replace": (1, replace),
    "start": (6, lambda: client.start()), "exchange": (8, lambda: client.exchange()), "wait": (8, lambda: client.wait()),
    "ready": (6, lambda: client.ready(*rng.choices(NAMES, k=rng.randrange(4)))), "pull": (4, lambda: client.pull()),
    "write parameters": (4, lambda: write(client.parameters)), "write gradients": (6, lambda: write(client.gradients)),
    "barrier": (2, lambda: client.barrier(rng.choice(["a\\0b", 3, None, "\\ud800"]))),
    "checkpoint": (1, lambda: client.save_checkpoint()), "begin": (1, lambda: client.begin_checkpoint()),
    "finish": (1, lambda: client.finish_checkpoint()), "finish steps": (0.3, lambda: client.finish_steps()),
    "leave": (0.3, lambda: client.leave()), "give up": (0.3, lambda: client.give_up(rng.choice(["why", "", 3, "\\ud800"]))),
    "stats": (2, lambda: client.stats()), "numbers": (2, lambda: (client.global_step, client.position, client.is_chief)),
    "keep": (3, keep), "touch": (3, touch), "delete": (1, delete), "exit": (0.3, lambda: client.__exit__(None, None, None)),
}

def call():
    name = rng.choices(list(ACTIONS), [weight for weight, _ in ACTIONS.values()])[0]
    faulthandler.dump_traceback_later(60, exit=True)  # a call that blocks ends the program
    names[name] = names.get(name, 0) + 1
    try:
        ACTIONS[name][1]()
        result = "ok"
    except Exception as error:
        result = type(error).__name__
        assert str(error) or isinstance(error, (AssertionError, StopIteration)), f"{name}: {error!r} has no text"
    counts[result] = counts.get(result, 0) + 1

for step in range(int(os.environ["MISUSE_CALLS"])):
    if client is None or client._left and rng.random() < 0.5:
        replace()
    if rng.random() < 0.05:
        both()
    else:
        call()
print("names", names, flush=True)
print("results", counts, flush=True)
assert counts["ok"] > 100 and counts["FailedPrecondition"] > 20 and counts["InvalidArgument"] > 10
"""


# A second worker, so that the run does not end when the first one leaves.
OTHER = """
client = gradrail.join({"w": (20, 30), "b": (7,), "one": ()})
client.start()
print("joined", flush=True)
time.sleep(1000)
"""


class Misuse(package.PackageTest):
    def check(self, *flags):
        seed = os.environ.get("GRADRAIL_TEST_SEED") or str(random.randrange(1 << 32))
        print(f"GRADRAIL_TEST_SEED={seed}", flush=True)
        _, environment = self.start_server(2, *flags)
        self.start_program(OTHER, environment(0), "worker/0").wait_for("joined", cluster.START)
        random_calls = {"MISUSE_SEED": seed, "MISUSE_CALLS": str(CALLS)}
        task = self.start_program(PROGRAM, {**environment(1), **random_calls}, "worker/1")
        self.assert_ends(task, cluster.GOOD, 120 * cluster.PATIENCE)

    def test_random_calls_of_one_worker(self):
        self.check()

    def test_random_calls_with_checkpoints(self):
        (self.folder / "checkpoints").mkdir()
        self.check("--checkpoint_dir", self.folder / "checkpoints")


class TorchMisuse(package.PackageTest):
    MODULES = ("numpy", "torch")

    def check(self, program):
        self.good_run("""
import torch
import gradrail.torch
F, I = gradrail.FailedPrecondition, gradrail.InvalidArgument
torch.manual_seed(1)
x = torch.randn(8, 4)
model = torch.nn.Linear(4, 3)
loss = lambda: model(x).pow(2).mean()
""" + program, workers=1)

    def test_models_and_options_are_checked(self):
        self.check("""
refused(I, "learning_rate", gradrail.torch.Exchange, model, lr=0)
for parameter in model.parameters():
    parameter.requires_grad_(False)
refused(I, "no parameter that requires a gradient", gradrail.torch.Exchange, model)
gradrail.join({"w": 1}).leave()  # the run ends
""")

    def test_a_second_gradient_is_refused(self):
        self.check("""
exchange = gradrail.torch.Exchange(model, lr=0.1)
loss().backward()
loss().backward()  # an exception in backward could block the end of the process
refused(F, "a second gradient of", exchange.step)
""")

    def test_changed_gradients_are_refused(self):
        self.check("""
exchange = gradrail.torch.Exchange(model, lr=0.1)
loss().backward()
exchange.step()
loss().backward()
refused(F, "between backward() and step()", exchange.zero_grad)
torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
refused(F, "exchange.accumulate()", exchange.step)  # the servers have the gradients before the clip
""")

    def test_a_converted_model_is_refused(self):
        self.check("""
exchange = gradrail.torch.Exchange(model, lr=0.1)
model.double()
refused(F, "moved or converted", exchange.step)
exchange.leave()
refused(F, "after leave()", exchange.client.exchange)
x = x.double()
loss().backward()  # the model is an ordinary one again
""")

    def test_changed_parameters_are_refused(self):
        # A run for each change: the run ends when its only worker leaves.
        for change in ("model.load_state_dict(torch.nn.Linear(4, 3).state_dict())", "torch.nn.init.zeros_(model.bias)"):
            with self.subTest(change):
                self.check(f"""
with gradrail.torch.Exchange(model, lr=0.1) as exchange:
    for _ in range(3):
        loss().backward()
        exchange.step()
    {change}
    exchange.zero_grad()  # does not hide the change
    loss().backward()
    refused(F, "make the Exchange after load_state_dict", exchange.step)
""")

    def test_a_dropped_exchange_leaves(self):
        self.check("""
import gc, weakref
exchange = gradrail.torch.Exchange(model, lr=0.1)
loss().backward()
exchange.step()
kept, client = exchange.client.gradients["weight"], weakref.ref(exchange.client)
del exchange
gc.collect()
assert client() is None
kept += 1
loss().backward()
assert model.weight.grad.abs().max() > 0
""")


if __name__ == "__main__":
    unittest.main()
