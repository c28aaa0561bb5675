"""gradrail.torch: two workers with half a batch each make the steps of one process with the whole batch."""
import unittest

import cluster
import package

# Each worker compares its model with that of one process. A test defines model() and may replace loss().
PROGRAM = """
import torch
import gradrail.torch
torch.set_num_threads(1)
torch.set_flush_denormal(False)
WORKERS, BATCH, STEPS = 2, 16, 100

def network(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.Tanh(), torch.nn.Linear(24, 24), torch.nn.Tanh(),
                               torch.nn.Linear(24, 5))

def batch(step, worker=None, dtype=torch.float32):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(WORKERS * BATCH, 12, generator=generator)
    y = torch.sin(x @ torch.linspace(-1, 1, 60).reshape(12, 5))
    part = slice(None) if worker is None else slice(worker * BATCH, (worker + 1) * BATCH)
    return x[part].to(dtype), y[part].to(dtype)

def loss(model, x, y):
    return ((model(x) - y) ** 2).mean()  # mse_loss() of torch 1.13 has no bfloat16

def difference(model, other):
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return max((a.double() - b.double()).abs().max().item() for a, b in pairs)
"""

# One worker with each optimizer beside torch.optim, with a schedule of the learning rate.
SAME_UPDATES = PROGRAM + """
def schedule(step):
    return min(1.0, (step + 1) / 10) * (0.5 if step > 60 else 1.0)

sgd, adam, adamw = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
cases = {
    ("sgd", 0.1): lambda p: sgd(p, lr=0.1),
    ("sgd", 0.1, 0.02): lambda p: sgd(p, lr=0.1, weight_decay=0.02),
    ("momentum", 0.02, 0.02): lambda p: sgd(p, lr=0.02, momentum=0.9, weight_decay=0.02),
    ("nesterov", 0.02, 0.02): lambda p: sgd(p, lr=0.02, momentum=0.9, nesterov=True, weight_decay=0.02),
    ("adam", 0.002): lambda p: adam(p, lr=0.002),
    ("adam", 0.002, 0.0, 1e-3): lambda p: adam(p, lr=0.002, eps=1e-3),
    ("adam", 0.002, 0.1): lambda p: adam(p, lr=0.002, weight_decay=0.1),
    ("adam", 0.002, 0.1, 1e-3): lambda p: adam(p, lr=0.002, weight_decay=0.1, eps=1e-3),
    ("adamw", 0.002): lambda p: adamw(p, lr=0.002),
    ("adamw", 0.002, 0.1, 1e-3): lambda p: adamw(p, lr=0.002, weight_decay=0.1, eps=1e-3),
}
case = list(cases)[int(os.environ["CASE"])]
options = dict(zip(("weight_decay", "epsilon"), case[2:]))
model, single = network(), network()
reference = cases[case](single.parameters())
with gradrail.torch.Exchange(model, optimizer=case[0], lr=case[1], mode="sync", **options) as exchange:
    for step in range(STEPS):
        exchange.lr = case[1] * schedule(step)
        reference.param_groups[0]["lr"] = case[1] * schedule(step)
        for network_, update in ((model, exchange), (single, reference)):
            update.zero_grad()
            loss(network_, *batch(step)).backward()
            update.step()
    apart, moved = difference(model, single), difference(model, network())
    assert apart < 1e-6 and moved > 1e-2, (case, apart, moved)
    print(f"{case}: difference {apart:.2e}, moved by {moved:.2e}", flush=True)
"""

# Both tests that change between servers and torch.optim after half of the steps begin with these functions.
HALVES = PROGRAM + """
kind = os.environ["OPTIMIZER"]

def optimizer_of(model):
    sgd = {"sgd": {}, "momentum": {"momentum": 0.9}, "nesterov": {"momentum": 0.9, "nesterov": True}}
    if kind in sgd:
        return torch.optim.SGD(model.parameters(), lr=0.02, **sgd[kind])
    return {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[kind](model.parameters(), lr=0.002)

def train(model, optimizer, steps):
    for step in steps:
        optimizer.zero_grad()
        loss(model, *batch(step)).backward()
        optimizer.step()
"""

# 50 steps of torch.optim; the servers make the other 50.
SAVE = HALVES + """
model = network()
optimizer = optimizer_of(model)
train(model, optimizer, range(STEPS // 2))
precious = os.environ["FILE"] + ".precious"
open(precious, "w").close()
os.symlink(precious, os.environ["FILE"] + ".tmp")  # a temporary name may be a link to another file
gradrail.torch.save_state(os.environ["FILE"], model, optimizer, None if "adam" in kind else np.int64(STEPS // 2))
assert os.path.getsize(precious) == 0
again = network(seed=1)
assert gradrail.torch.load_state(os.environ["FILE"], again, optimizer_of(again)) == STEPS // 2
assert difference(again, model) == 0
gradrail.torch.load_state(os.fsencode(os.environ["FILE"]), again)
for name in ("pipe.npz", "pipe.safetensors"):  # each waited for the writer
    pipe = os.path.join(os.path.dirname(os.environ["FILE"]), kind + name)
    os.mkfifo(pipe)
    for call, arguments in ((gradrail.torch.load_state, (again,)), (gradrail.torch.save_state, (model, optimizer))):
        try:
            call(pipe, *arguments)
            raise AssertionError("a pipe is a file")
        except OSError as error:
            assert "is a pipe (FIFO), not a regular file" in str(error), error
        except gradrail.InvalidArgument as error:
            assert "must end with .safetensors" in str(error), error
"""

CONTINUE_AT_SERVERS = HALVES + """
single, model = network(), network(seed=1)
reference = optimizer_of(single)
train(single, reference, range(STEPS))
with gradrail.torch.Exchange(model, optimizer=kind, lr=reference.defaults["lr"], mode="sync") as exchange:
    assert exchange.global_step == STEPS // 2, exchange.global_step
    for step in range(STEPS // 2, STEPS):
        loss(model, *batch(step)).backward()
        exchange.step()
    assert exchange.client.global_step == STEPS
assert difference(model, single) < 1e-6, (kind, difference(model, single))
"""

# 50 steps at the servers, then 50 steps of torch.optim with the exported state, beside 100 steps of torch.optim.
CONTINUE = HALVES + """
from gradrail import checkpoint
saved = os.environ["SAVED"]

def export(name, optimizer_state):
    path = os.path.join(saved, name)
    checkpoint.export_arrays(saved, path, optimizer_state=optimizer_state)
    return path

single, trained = network(), network()
reference = optimizer_of(single)
train(single, reference, range(STEPS))
with gradrail.torch.Exchange(trained, optimizer=kind, lr=reference.defaults["lr"], mode="sync") as exchange:
    for step in range(STEPS // 2):
        loss(trained, *batch(step)).backward()
        exchange.step()
    assert exchange.is_chief
    exchange.save_checkpoint()
for name in ("state.npz", "state.safetensors"):
    model = network(seed=1)
    optimizer = optimizer_of(model)
    assert gradrail.torch.load_state(export(name, True), model, optimizer) == STEPS // 2
    assert difference(model, trained) == 0
    train(model, optimizer, range(STEPS // 2, STEPS))
    assert difference(model, single) < 1e-6, (kind, name, difference(model, single))
    without = export("without-" + name, False)
    assert gradrail.torch.load_state(without, network(seed=1)) is None
    before = network(seed=2)
    refused(gradrail.InvalidArgument, "without --optimizer-state", gradrail.torch.load_state, without, before, optimizer)
    other = torch.nn.Sequential(torch.nn.Linear(12, 23))
    refused(gradrail.InvalidArgument, "the model has (23, 12)", gradrail.torch.load_state, without, other)
    other = torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Linear(12, 24))
    refused(gradrail.InvalidArgument, "has no array 1.weight, only 0.bias", gradrail.torch.load_state, without, other)
    of = {"sgd": "SGD without momentum", "momentum": "SGD with momentum", "nesterov": "SGD with momentum"}.get(kind, "Adam or AdamW")
    for other, wrong in (("SGD without momentum", torch.optim.SGD(before.parameters(), lr=0.1)),
                         ("SGD with momentum", torch.optim.SGD(before.parameters(), lr=0.1, momentum=0.9)),
                         ("Adam or AdamW", torch.optim.Adam(before.parameters()))):
        if other != of:
            refused(gradrail.InvalidArgument, f"has the state of {of}, and the optimizer is {other}", gradrail.torch.load_state,
                    os.path.join(saved, name), before, wrong)
    assert difference(before, network(seed=2)) == 0, "a refused file has changed the model"
"""


class TorchTest(package.PackageTest):
    MODULES = ("numpy", "torch")


class SameUpdates(TorchTest):
    @cluster.long("random_torch_test and random_numpy_test draw the optimizer and some of its constants")
    def test_every_optimizer_makes_the_updates_of_torch(self):
        self.good_runs(SAME_UPDATES, {str(case): {"CASE": str(case)} for case in range(10)}, workers=1)

    @cluster.long("a_state_that_the_servers_do_not_have_is_refused writes such files; no other test trains on with them")
    def test_torch_continues_with_the_state_of_the_servers(self):
        for kind in ("sgd", "momentum", "nesterov", "adam", "adamw"):
            with self.subTest(kind=kind):
                saved = self.folder / kind
                self.good_run(CONTINUE, "--checkpoint_dir", saved, workers=1,
                              environment={"OPTIMIZER": kind, "SAVED": str(saved)})
        self.good_run(PROGRAM + """
refused(gradrail.FailedPrecondition, 'use optimizer torch_adam, or another checkpoint folder (torch_adam is "adam"',
        lambda: gradrail.torch.Exchange(network(), optimizer="sgd", lr=0.1))
""", "--checkpoint_dir", self.folder / "adam", workers=1)

    @cluster.long("a_state_that_the_servers_do_not_have_is_refused writes such files; no other test trains on with them")
    def test_servers_continue_with_the_state_of_torch(self):
        for kind in ("sgd", "momentum", "nesterov", "adam", "adamw"):
            with self.subTest(kind=kind):
                state, saved = self.folder / f"{kind}.safetensors", self.folder / f"imported-{kind}"
                self.assert_ends(self.start_program(SAVE, {"OPTIMIZER": kind, "FILE": str(state)}), cluster.GOOD)
                imported = self.launch("import", [cluster.python_with("numpy"), "-m", "gradrail.checkpoint", "import", str(saved), str(state)],
                                       cluster.python_environment())
                self.assert_ends(imported, cluster.GOOD)
                self.good_run(CONTINUE_AT_SERVERS, "--checkpoint_dir", saved, workers=1, environment={"OPTIMIZER": kind})

    def test_a_state_that_the_servers_do_not_have_is_refused(self):
        state = str(self.folder / "state.safetensors")
        self.assert_ends(self.start_program(PROGRAM + """
state, model = os.environ["FILE"], network()
parameters = list(model.parameters())
for text, optimizer in (
        ("amsgrad", torch.optim.Adam(parameters, amsgrad=True)),
        ("dampening", torch.optim.SGD(parameters, lr=0.1, momentum=0.9, dampening=0.5)),
        ("Adagrad: must be", torch.optim.Adagrad(parameters))):
    refused(gradrail.InvalidArgument, text, gradrail.torch.save_state, state, model, optimizer)
optimizer = torch.optim.AdamW(parameters)
loss(model, *batch(0)).backward()
optimizer.step()
refused(gradrail.InvalidArgument, "the optimizer has made 1 steps", gradrail.torch.save_state, state, model, optimizer, 7)
other = torch.optim.AdamW(network().parameters())
for call in (gradrail.torch.save_state, gradrail.torch.load_state):
    for text, wrong in (("parameter 0.weight: the optimizer does not have it", other), ("amsgrad", torch.optim.AdamW(parameters, amsgrad=True)),
                        ("momentum, nesterov: differ", torch.optim.SGD([{"params": parameters[:1]}, {"params": parameters[1:], "momentum": 0.5}], lr=1))):
        arguments = (state, model, wrong)
        if call is gradrail.torch.load_state:
            gradrail.torch.save_state(state, model, optimizer)
        refused(gradrail.InvalidArgument, text, call, *arguments)
        if os.path.exists(state):
            os.remove(state)
mixed = torch.optim.Adam([{"params": parameters[:1]}, {"params": parameters[1:]}])
mixed.param_groups[1]["decoupled_weight_decay"] = True
refused(gradrail.InvalidArgument, "decoupled_weight_decay: differs", gradrail.torch.save_state, state, model, mixed)
for step in (-1, 2.5, 2**62 + 1, True):
    refused(gradrail.InvalidArgument, "global_step", gradrail.torch.save_state, state, model, torch.optim.SGD(parameters, lr=1), step)
refused(gradrail.InvalidArgument, "must end with .safetensors", gradrail.torch.save_state, state + ".npz", model, optimizer)
parameters[0].grad = None
optimizer.step()
refused(gradrail.InvalidArgument, "different numbers of steps (0.weight 1, 4.bias 2)", gradrail.torch.save_state, state, model, optimizer)
assert not os.path.exists(state)
for damaged in (b"", b"12345678", b"\\x02" + bytes(7) + b"[]", b"\\x10" + bytes(7) + b'{"a":{"dtype":1}}'):
    for name in (state, state + ".npz"):
        with open(name, "wb") as file:
            file.write(damaged)
        refused(gradrail.InvalidArgument, "or is damaged", gradrail.torch.load_state, name, model)
""", {"FILE": state}), cluster.GOOD)

    def test_wrong_rates_and_decays_are_refused(self):
        self.good_run(PROGRAM + """
refused(gradrail.InvalidArgument, "mean: needs mode sync", gradrail.join, {"w": 3}, optimizer="mean", join_timeout=20)
refused(gradrail.InvalidArgument, "push format 'fp8': there are fp32, bf16", gradrail.join, {"w": 3}, push="fp8")
refused(gradrail.InvalidArgument, "weight_decay -1", gradrail.join, {"w": 3}, weight_decay=-1)
model = network()
with gradrail.torch.Exchange(model, lr=0.1) as exchange:
    for rate in (-1, float("nan"), float("inf"), "fast", 1e39):
        refused(gradrail.InvalidArgument, "lr: must be", setattr, exchange, "lr", rate)
    assert exchange.lr == 0.1
    loss(model, *batch(0)).backward()                    # gradients have left with the rate before
    refused(gradrail.FailedPrecondition, "an exchange is under way", setattr, exchange, "lr", 0.2)
    exchange.step()
    exchange.lr = 0
    before = [p.detach().clone() for p in model.parameters()]
    loss(model, *batch(0)).backward()
    exchange.step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
""", workers=1)


# The masters follow a float32 simulation; the model has them rounded to its own dtype.
MASTERS = PROGRAM + """
dtype = torch.bfloat16
model, single = network().to(dtype), network().to(dtype)
masters = [p.detach().float() for p in single.parameters()]
with gradrail.torch.Exchange(model, lr=0.05, mode="sync") as exchange:
    for step in range(STEPS):
        loss(model, *batch(step, exchange.client.task_index, dtype)).backward()
        exchange.step()
        mean = [torch.zeros_like(master) for master in masters]
        for worker in range(WORKERS):
            single.zero_grad()
            loss(single, *batch(step, worker, dtype)).backward()
            for total, p in zip(mean, single.parameters()):
                total += p.grad.float() / WORKERS
        for master, total, p in zip(masters, mean, single.parameters()):
            master -= 0.05 * total
            p.data.copy_(master)
        fresh = [torch.from_numpy(exchange.client.parameters[name]) for name, _ in model.named_parameters()]
        assert all(p.dtype == dtype and torch.equal(p, f.to(dtype)) for p, f in zip(model.parameters(), fresh))
    apart = max((f - master).abs().max().item() for f, master in zip(fresh, masters))
    assert apart < 2e-2, apart
    print(f"masters apart by {apart:.2e}", flush=True)
"""


# Shared, frozen and unused parameters.
EQUAL = PROGRAM + """
def tied():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.first = torch.nn.Linear(12, 12)
            self.second = torch.nn.Linear(12, 12)
            self.second.weight = self.first.weight           # shared
            self.last = torch.nn.Linear(12, 5)
            self.frozen = torch.nn.Linear(12, 12)
            self.frozen.requires_grad_(False)
            self.unused = torch.nn.Linear(3, 3)              # never has a gradient
            self.scale = torch.nn.Parameter(torch.tensor(0.7))

        def forward(self, x):
            return self.last(torch.tanh(self.second(torch.tanh(self.first(self.frozen(x)))))) * self.scale
    return Tied()

model, single, begin = tied(), tied(), tied()
reference = torch.optim.SGD(single.parameters(), lr=0.05)
with gradrail.torch.Exchange(model, lr=0.05, mode="sync") as exchange:
    names = list(exchange.client.parameters)
    assert names.count("first.weight") == 1 and "second.weight" not in names and "frozen.weight" not in names, names
    assert exchange.client.parameters["scale"].shape == (1,) and model.scale.shape == ()
    for step in range(STEPS):
        loss(model, *batch(step, exchange.client.task_index)).backward()
        exchange.step()
        reference.zero_grad()
        loss(single, *batch(step)).backward()
        reference.step()
    assert model.second.weight is model.first.weight
    assert difference(model, single) < 1e-5, difference(model, single)
    for name in ("frozen", "unused"):
        assert torch.equal(getattr(model, name).weight, getattr(begin, name).weight), name
    assert not torch.equal(model.scale, begin.scale)
"""


class Models(TorchTest):
    def test_steps_equal_one_process(self):
        self.good_run(EQUAL)

    def test_a_model_in_bfloat16_has_float32_masters(self):
        self.good_run(MASTERS)

    def test_buffers_stay_local(self):
        self.good_run(PROGRAM + """
torch.manual_seed(5)
model = torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.BatchNorm1d(24), torch.nn.Linear(24, 5))
with gradrail.torch.Exchange(model, lr=0.05, mode="sync") as exchange:
    assert not any("running" in name for name in exchange.client.parameters)
    own = torch.zeros(24)
    for step in range(10):
        x, y = batch(step, exchange.client.task_index)
        own = 0.9 * own + 0.1 * model[0](x).mean(0).detach()
        loss(model, x, y).backward()
        exchange.step()
    assert (model[1].running_mean - own).abs().max() < 1e-6
    assert model[1].num_batches_tracked == 10
print("mean", model[1].running_mean[:4].tolist(), "weight", model[1].weight[:4].tolist(), flush=True)
""").wait_for("mean")
        lines = [line.text.split("] ", 1)[1] for line in self.tasks[-1].lines() if "mean [" in line.text]
        (mean0, weight0), (mean1, weight1) = (line.split(" weight ") for line in lines)
        self.assertNotEqual(mean0, mean1)
        self.assertEqual(weight0, weight1)


if __name__ == "__main__":
    unittest.main()
