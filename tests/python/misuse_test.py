"""Random calls of the Python package, most of them wrong: each succeeds or raises an exception. None ends or blocks the
process. GRADRAIL_TEST_SEED repeats a run with the seed that it printed."""
import os
import random
import unittest

import cluster
import package

CALLS = 1000

PROGRAM = """
import concurrent.futures, gc, random

seed = int(os.environ["MISUSE_SEED"])
rng = random.Random(seed)
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
    "step": (4, lambda: client.step()),
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

    BEGIN = """
import torch
import gradrail.torch
F, I = gradrail.FailedPrecondition, gradrail.InvalidArgument
torch.manual_seed(1)
x = torch.randn(8, 4)
model = torch.nn.Linear(4, 3)
loss = lambda: model(x).pow(2).mean()
"""

    def check(self, program, workers=1, **environment):
        self.good_run(self.BEGIN + program, workers=workers, environment=environment)

    def check_each(self, programs):
        """Checks programs of one worker, each in a run of its own: the run ends when its only worker leaves."""
        self.good_runs(self.BEGIN + "exec(os.environ['CHECKED'])",
                       {str(number): {"CHECKED": program} for number, program in enumerate(programs)}, workers=1)

    def test_models_and_options_are_checked(self):
        self.check("""
refused(I, "lr 0: must be more than 0", gradrail.torch.Exchange, model, lr=0)
refused(I, "lr: must be a number, not '0.5'", gradrail.torch.Exchange, model, lr="0.5")
refused(I, "the argument of an Exchange is lr", gradrail.torch.Exchange, model, learning_rate=0.1)
refused(I, "optimizer 'mean': must be one of sgd", gradrail.torch.Exchange, model, optimizer="mean")
refused(I, "mode: a MeanExchange has none", gradrail.torch.MeanExchange, model, mode="async")
refused(I, "must be a torch.nn.Module, not generator", gradrail.torch.Exchange, model.parameters())
for parameter in model.parameters():
    parameter.requires_grad_(False)
refused(I, "no parameter that requires a gradient", gradrail.torch.Exchange, model)
gradrail.join({"w": 1}).leave()  # the run ends
""")

    @cluster.long("no other test has complex numbers")
    def test_complex_parameters_are_refused(self):
        # The copy to float32 dropped the imaginary part.
        self.check("""
for dtype in (torch.complex64, torch.complex128):
    model.phase = torch.nn.Parameter(torch.ones(2, dtype=dtype))
    for make in (gradrail.torch.Exchange, gradrail.torch.MeanExchange):
        error = refused(I, f"parameter phase: has the dtype {dtype}", make, model)
        assert "torch.view_as_real" in str(error), error
model.phase.requires_grad_(False)  # stays local
with gradrail.torch.Exchange(model, lr=0.1) as exchange:
    loss().backward()
    exchange.step()
""")

    @cluster.long("no other test has complex numbers")
    def test_the_hook_refuses_complex_gradients(self):
        # gloo has no complex numbers, and NCCL has: this bucket is that of a model converted before DDP was made.
        self.check("""
import types
mean = gradrail.torch.MeanExchange(model)
model.to(torch.complex64)
bucket = types.SimpleNamespace(parameters=lambda: [model.weight], is_last=lambda: False,
                               gradients=lambda: [torch.ones_like(model.weight)])
refused(I, "weight: has the dtype torch.complex64", gradrail.torch.ddp_mean_hook, mean, bucket)
mean.leave()
""")

    def test_a_second_gradient_is_refused(self):
        self.check("""
exchange = gradrail.torch.Exchange(model, lr=0.1)
loss().backward()
loss().backward()  # an exception in backward could block the end of the process
refused(F, "a second gradient of", exchange.step)
""")

    @cluster.long("torch_changes_test changes the shape of a parameter; no other test changes its dtype")
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

    @cluster.long("diloco_test.wrong_arguments_and_models_are_refused replaces a parameter of a DiLoCo")
    def test_replaced_parameters_are_refused(self):
        # The servers updated the former parameter, and the model kept the new one.
        self.check_each(f"""
with gradrail.torch.Exchange(model, lr=0.1) as exchange:
    loss().backward()
    exchange.step()
    {change}
    loss().backward()
    refused(F, "was replaced by the program", exchange.step)
""" for change in ("model.weight = torch.nn.Parameter(torch.zeros(3, 4))", "model.bias = None"))

    @cluster.long("no other test adds parameters")
    def test_added_parameters_are_refused(self):
        added = [("model.extra = torch.nn.Linear(2, 2)", "extra.bias, extra.weight"),
                 ("model.head = torch.nn.Linear(3, 2)", "head.bias, head.weight"),
                 ("model.empty.bias = torch.nn.Parameter(torch.zeros(2))", "empty.bias"),
                 ("model.bias.requires_grad_()", "bias")]
        self.check_each(f"""
model.bias.requires_grad_(False)
model.head, model.empty = torch.nn.Linear(3, 2), torch.nn.Linear(2, 2, bias=False)
with gradrail.torch.{begin} as exchange:
    model.kept = torch.nn.ReLU()  # has no parameter
    loss().backward()
    {step}()
    {change}
    loss().backward()
    for _ in range(2):
        refused(F, "{name}: requires a gradient since the", {step})
""" for begin, step, changes in (("Exchange(model, lr=0.1)", "exchange.step", added),
                                 ("MeanExchange(model)", "exchange.average", added[:1])) for change, name in changes)

    def test_a_second_client_of_one_worker_is_refused_at_once(self):
        self.check("""
with gradrail.torch.Exchange(model, lr=0.1) as exchange:
    refused(gradrail.AlreadyExists, "call leave() of its Client or Exchange first",
            lambda: gradrail.torch.Exchange(model, join_timeout=3600))
    refused(I, "ps_hosts: must be", lambda: gradrail.join({"w": 1}, ps_hosts=5))
    hosts = (host for host in os.environ["GRADRAIL_PS_HOSTS"].split(","))
    refused(gradrail.AlreadyExists, "call leave() of its Client", lambda: gradrail.join({"w": 1}, ps_hosts=hosts))
    loss().backward()
    exchange.step()
""")

    @cluster.long("no other test averages the same gradients twice")
    def test_a_second_average_is_refused(self):
        self.check("""
with gradrail.torch.MeanExchange(model) as mean:
    mean.average()  # no gradient: nothing to average
    mean.average()
    for _ in range(2):
        loss().backward()  # accumulates on the mean
        mean.average()
        refused(F, "the mean of the last average() already", mean.average)
    torch.optim.SGD(model.parameters(), lr=0.1).zero_grad()
    model.weight.grad = torch.ones(3, 4)
    mean.average()
    assert mean.client.global_step == 5
refused(F, "after leave()", mean.client.exchange)
""")

    @cluster.long("no other test moves the model of a MeanExchange")
    def test_a_moved_model_has_no_mean(self):
        self.check_each(f"""
with gradrail.torch.MeanExchange(model) as mean:
    loss().backward()
    mean.average()
    {change}
    refused(F, "was moved, converted or replaced: make the MeanExchange after that", mean.average)
""" for change in ("model.double()", "model.to('meta')", "model.weight = torch.nn.Parameter(torch.zeros(3, 4))", "del model.bias"))

    @cluster.long("no other test calls both")
    def test_the_hook_and_average_are_not_mixed(self):
        for first in ("hook", "average"):
            with self.subTest(first=first):
                self.check("""
torch.distributed.init_process_group("gloo", init_method="file://" + os.environ["STORE"], rank=0, world_size=1)
ddp = torch.nn.parallel.DistributedDataParallel(model)
mean = gradrail.torch.MeanExchange(model)
ddp.register_comm_hook(mean, gradrail.torch.ddp_mean_hook)
if os.environ["FIRST"] == "hook":
    ddp(x).pow(2).mean().backward()
    refused(F, "average(): this MeanExchange is used by ddp_mean_hook", mean.average)
else:
    loss().backward()
    mean.average()
    try:
        ddp(x).pow(2).mean().backward()
    except Exception as error:
        assert "ddp_mean_hook: this MeanExchange is used by average()" in str(error), error
    else:
        raise AssertionError("the hook was not refused")
mean.leave()
os._exit(0)  # an exception in backward could block the end of the process
""", FIRST=first, STORE=str(self.folder / f"store-{first}"))

    @cluster.long("no other test joins a MeanExchange late")
    def test_a_late_worker_has_no_parameters_of_the_chief(self):
        self.check("""
mean = gradrail.torch.MeanExchange(model)
loss().backward()
mean.average()
done = os.environ["DONE"]
if mean.client.task_index == 1:
    mean.leave()
    before = model.weight.detach().clone()
    mean = gradrail.torch.MeanExchange(model)
    assert torch.equal(model.weight, before)  # and not the mean gradient
    refused(F, "the run has made 1 steps before this worker joined", mean.average)
    open(done, "w").close()
while not os.path.exists(done):  # a barrier does not wait for a worker that has left
    time.sleep(0.1)
mean.leave()
""", workers=2, DONE=str(self.folder / "done"))

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
