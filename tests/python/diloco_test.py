"""gradrail.torch.DiLoCo beside a DiLoCo of plain torch, which has all workers in one process and no transport."""
import re
import unittest

import cluster
import torch_test

# reference() makes the inner steps of all workers in turns and averages their differences. It is the algorithm of the
# papers, written a second time.
PROGRAM = torch_test.PROGRAM + """
import copy
T = gradrail.torch
ROUNDS, EVERY, DELAY = 8, 5, int(os.environ.get("DELAY", 0))
CLIP = float(os.environ["CLIP"]) if "CLIP" in os.environ else None
FRAGMENTS = int(os.environ.get("FRAGMENTS", 1))
SETS = {1: [range(0, 6)], 2: [range(0, 2), range(2, 6)]}.get(FRAGMENTS)  # of parameters, about equal in elements
rank = int(os.environ["GRADRAIL_TASK_INDEX"])

def inner(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)

def train_step(model, optimizer, step, worker):
    optimizer.zero_grad()
    loss(model, *batch(step, worker)).backward()
    optimizer.step()

class Scheduled:
    "A torch.optim.SGD that has the rate rate(n) in its step n."
    def __init__(self, parameters, rate, **options):
        self.sgd = torch.optim.SGD(parameters, lr=1.0, **options)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.sgd, rate)
    def step(self):
        self.sgd.step()
        self.scheduler.step()

class Delayed:
    "The algorithm of arXiv 2401.09135: beta, epsilon, N and g_t are its names, and c is 0."
    def __init__(self, parameters, epsilon, beta, N):
        self.parameters, self.epsilon, self.beta, self.N, self.t = list(parameters), epsilon, beta, N, 0
        self.m = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.collected = [torch.zeros_like(parameter) for parameter in self.parameters]
    def step(self):
        self.t += 1
        for theta, m, collected in zip(self.parameters, self.m, self.collected):
            collected += theta.grad
            momentum = 0
            if self.t % self.N == 0:
                m.copy_(self.beta * m + collected / self.N)
                collected.zero_()
                momentum = self.beta * m
            theta -= self.epsilon * (momentum + theta.grad / self.N)

def subtract(shared, local):
    gradients = [a - b for a, b in zip(shared, local)]
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm().item()
    return [gradient * min(1.0, CLIP / norm) for gradient in gradients] if CLIP else gradients

@torch.no_grad()
def reference(make_outer, keep=0.0, delay=0):
    common = network()
    outers = [make_outer([list(common.parameters())[i] for i in one]) for one in SETS]
    models = [copy.deepcopy(common) for _ in range(WORKERS)]
    optimizers = [inner(model) for model in models]
    merge_at = None
    for step in range(1, ROUNDS * EVERY + 1):
        for worker, (model, optimizer) in enumerate(zip(models, optimizers)):
            with torch.enable_grad():
                train_step(model, optimizer, step, worker)
        if step % EVERY == 0:
            fragment = (step // EVERY - 1) % FRAGMENTS
            part = lambda model: [list(model.parameters())[i] for i in SETS[fragment]]
            for shared, *gradients in zip(part(common), *(subtract(part(common), part(model)) for model in models)):
                shared.grad = sum(gradients) / WORKERS
            outers[fragment].step()
            merge_at = step + delay
        if step == merge_at:
            for model in models:
                for i, (local, shared) in enumerate(zip(model.parameters(), common.parameters())):
                    if i in SETS[fragment]:
                        local.copy_(keep * local + (1 - keep) * shared)
    for model in models:
        for i, (local, shared) in enumerate(zip(model.parameters(), common.parameters())):
            local.copy_(shared)
    return common
"""

SAME_STEPS = PROGRAM + """
outer, torch_outer = {
    "nesterov": (T.Nesterov(0.7, 0.9), lambda p: torch.optim.SGD(p, lr=0.7, momentum=0.9, nesterov=True)),
    "sgd": (T.SGD(), lambda p: torch.optim.SGD(p, lr=1.0)),
    "adam": (T.Adam(0.02), lambda p: torch.optim.Adam(p, lr=0.02, betas=(0.9, 0.99))),
    "delayed": (T.DelayedNesterov(0.7, 0.9, every=3), lambda p: Delayed(p, 0.7, 0.9, 3)),
    "schedule": (T.Nesterov(lambda n: 0.7 / (1 + n), 0.9),
                 lambda p: Scheduled(p, lambda n: 0.7 / (1 + n), momentum=0.9, nesterov=True)),
}[os.environ["OUTER"]]
model = network(rank)  # the chief's parameters count
optimizer = inner(model)
plain_step = optimizer.step
with T.DiLoCo(model, optimizer, sync_every=EVERY * FRAGMENTS, fragments=FRAGMENTS, delay=DELAY, outer=outer,
              clip=CLIP) as diloco:
    clipped = set()
    for step in range(1, ROUNDS * EVERY + 1):
        train_step(model, optimizer, step, rank)
        clipped.add(CLIP is not None and step >= EVERY and diloco.difference_norm > CLIP)
    assert clipped == ({False} if CLIP is None else {False, True}), "the test needs differences on both sides of the limit"
    assert diloco.inner_steps == ROUNDS * EVERY
assert diloco.global_step == ROUNDS // FRAGMENTS, diloco.global_step  # leave() has merged the last one
assert optimizer.step == plain_step
expected = reference(torch_outer, keep=0.5 if DELAY else 0.0, delay=DELAY)
moved = difference(expected, network())
assert difference(model, expected) < 2e-5 and moved > 1e-2, (difference(model, expected), moved)
print(f"difference {difference(model, expected):.1e}, moved by {moved:.1e}", flush=True)
"""

FORMATS = PROGRAM + """
push = os.environ["PUSH"]
model = network()
optimizer = inner(model)
with T.DiLoCo(model, optimizer, sync_every=EVERY, push=push, return_format=os.environ.get("RETURN", "fp32"),
              # Error feedback over many rounds takes the place of the outer momentum.
              outer=T.SGD(0.7) if push.startswith("topk") else T.Nesterov(0.7, 0.9)) as diloco:
    for step in range(1, 6 * ROUNDS * EVERY + 1):
        train_step(model, optimizer, step, rank)
    stats = diloco.stats()
    pushed = stats["bytes_pushed"]
    returned = stats["bytes_returned"] / stats["bytes_returned_fp32"]
with torch.no_grad():
    cost = sum(loss(model, *batch(step)).item() for step in range(1000, 1050)) / 50
print(f"cost {cost:.4f} pushed {pushed} returned {returned}", flush=True)
"""

# A scheduler wraps the step() of the inner optimizer before the DiLoCo in worker 0 and after it in worker 1. Steps have a
# closure.
SCHEDULED = PROGRAM + """
model = network()
optimizer = inner(model)
schedule = lambda: torch.optim.lr_scheduler.StepLR(optimizer, 3)
scheduler = schedule() if rank == 0 else None
with T.DiLoCo(model, optimizer, sync_every=3) as diloco:
    scheduler = scheduler or schedule()
    for step in range(6):
        def closure():
            optimizer.zero_grad()
            cost = loss(model, *batch(step, rank))
            cost.backward()
            return cost
        assert optimizer.step(closure) > 0
        scheduler.step()
    diloco.lr = 0.5
    diloco.set_weight(3)
    assert diloco.lr == 0.5 and diloco.global_step == 2 and diloco.inner_steps == 6
optimizer.step(closure)
scheduler.step()
assert diloco.inner_steps == 6
"""

HALF = PROGRAM + """
model = network().to(torch.bfloat16)
optimizer = inner(model)
with T.DiLoCo(model, optimizer, sync_every=EVERY, push="bf16") as diloco:
    for step in range(1, ROUNDS * EVERY + 1):
        optimizer.zero_grad()
        loss(model, *batch(step, rank, torch.bfloat16)).backward()
        optimizer.step()
    common = [torch.from_numpy(values.copy()) for values in diloco.client.parameters.values()]
for ours, theirs in zip(model.parameters(), common):
    assert torch.equal(ours, theirs.view(ours.shape).to(torch.bfloat16))
    assert not torch.equal(theirs, theirs.to(torch.bfloat16).float()), "the common parameters are float32"
"""

# Each round moves the common parameter by a quarter of a unit of bfloat16.
QUARTERS = PROGRAM + """
model = torch.nn.Linear(1, 1, bias=False).to(torch.bfloat16)
model.weight.data.fill_(1.0)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
with T.DiLoCo(model, optimizer, sync_every=1, outer=T.SGD(0.25)) as diloco:
    for _ in range(10):
        model.weight.grad = torch.full_like(model.weight, -2.0 ** -7)
        optimizer.step()
    common = diloco.client.parameters["weight"].item()
assert common == 1.0 + 2.5 * 2.0 ** -7, common
"""

# The order of the merges is fixed: each worker merges once in each turn, while the other one waits.
ASYNC = PROGRAM + """
model = network()
optimizer = inner(model)
with T.DiLoCo(model, optimizer, sync_every=EVERY, outer=T.DelayedNesterov(0.7, 0.9), mode="async") as diloco:
    diloco.client.barrier("begin")  # a worker that joins after a merge begins with its result
    for turn in range(2 * ROUNDS):
        if turn % 2 == rank:
            for step in range(EVERY):
                train_step(model, optimizer, turn * EVERY + step, rank)
        diloco.client.barrier(f"turn {turn}")
    diloco.client.pull()
    got = [torch.from_numpy(values.copy()) for values in diloco.client.parameters.values()]

common = network()
outer = Delayed(common.parameters(), 0.7, 0.9, 2)
models, bases = [network() for _ in range(2)], [network() for _ in range(2)]
optimizers = [inner(model) for model in models]
for turn in range(2 * ROUNDS):
    model, base = models[turn % 2], bases[turn % 2]
    for step in range(EVERY):
        train_step(model, optimizers[turn % 2], turn * EVERY + step, turn % 2)
    with torch.no_grad():
        for shared, local, begun in zip(common.parameters(), model.parameters(), base.parameters()):
            shared.grad = begun - local
        outer.step()
        for shared, local, begun in zip(common.parameters(), model.parameters(), base.parameters()):
            begun.copy_(shared)
            local.copy_(shared)
for ours, theirs in zip(got, common.parameters()):
    ours = ours.view(theirs.shape)
    assert torch.allclose(ours, theirs, atol=2e-5), (ours - theirs).abs().max()
assert difference(common, network()) > 1e-2
print("agrees", flush=True)
"""

# Worker 1 diverges in its third block, and is started again.
DIVERGED = PROGRAM + """
model = network()
optimizer = inner(model)
diverged, again = os.environ["MARKER"], os.environ["MARKER"] + "-again"
with T.DiLoCo(model, optimizer, sync_every=EVERY, push=os.environ["PUSH"]) as diloco:
    if os.path.exists(diverged):
        open(again, "w").close()
    while diloco.global_step < 10 or not os.path.exists(again):
        train_step(model, optimizer, diloco.inner_steps, rank)
        time.sleep(0.005)
        if rank == 1 and diloco.inner_steps == 2 * EVERY + 2 and not os.path.exists(diverged):
            open(diverged, "w").close()
            model[2].weight.data[3, 5] = float("nan")
assert all(parameter.isfinite().all() for parameter in model.parameters())
print("ended", flush=True)
"""

# Worker 1 is killed in the middle of its inner steps, and started again.
KILLED = PROGRAM + """
model = network()
optimizer = inner(model)
killed = os.environ["MARKER"]
with T.DiLoCo(model, optimizer, sync_every=EVERY, delay=2 if FRAGMENTS == 1 else 0, push="int8",
              fragments=FRAGMENTS) as diloco:
    if os.path.exists(killed):
        open(killed + "-returned", "w").close()
    while diloco.global_step < 40:
        # On a busy machine, the other one may need more time for its return than for all steps.
        while rank == 0 and diloco.global_step >= 20 and not os.path.exists(killed + "-returned"):
            time.sleep(0.01)
        train_step(model, optimizer, diloco.inner_steps, rank)
        time.sleep(0.005 if FRAGMENTS == 1 else 0.04)
        if rank == 1 and diloco.inner_steps == 33 and not os.path.exists(killed):
            open(killed, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
    assert diloco.global_step >= 40
print("ended", flush=True)
"""

# The run of MISUSE has ended: this one has other servers.
RATES = """
model = network()
optimizer = inner(model)
with T.DiLoCo(model, optimizer, sync_every=1, outer=T.Nesterov(lambda n: 0.5 * n if n < 2 else -1.0), task_index=0,
              ps_hosts=os.environ["OTHER_PS_HOSTS"], worker_hosts="localhost:3000") as diloco:
    assert diloco.lr == 0.0
    train_step(model, optimizer, 0, 0)
    train_step(model, optimizer, 1, 0)
    assert diloco.lr == 0.5
    refused(gradrail.FailedPrecondition, "lr: the outer optimizer has a schedule", setattr, diloco, "lr", 0.1)
    refused(gradrail.InvalidArgument, "lr of outer step 2: must be 0 or more, not -1.0", optimizer.step)
"""

REPLACED = PROGRAM + """
class InPlace(torch.optim.SGD):
    "Changes through .data are not counted by torch."
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.sub_(parameter.grad, alpha=0.1)

for kind in (torch.optim.SGD, InPlace):
    model = network()
    try:
        with T.DiLoCo(model, inner(model), sync_every=5) as diloco:
            optimizer = kind(model.parameters(), lr=0.1)
            for step in range(3):
                train_step(model, optimizer, 0, step)
            trained = copy.deepcopy(model.state_dict())
            if kind is InPlace:
                refused(gradrail.FailedPrecondition, "is another optimizer in use".capitalize(), diloco.leave)
                raise gradrail.FailedPrecondition("is another optimizer in use")
    except gradrail.FailedPrecondition as error:
        assert "is another optimizer in use" in str(error).lower(), error
    else:
        raise AssertionError("the steps of the other optimizer were lost")
    assert all(torch.equal(value, trained[name]) for name, value in model.state_dict().items())

# A loop until some outer step ends, although the program has switched to another optimizer.
model = network()
first = inner(model)
diloco = T.DiLoCo(model, first, sync_every=5)
optimizer = first
try:
    while diloco.global_step < 3:
        train_step(model, optimizer, 0, 0)
        if diloco.global_step == 1:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
except gradrail.FailedPrecondition as error:
    assert "6 times since the last step of the inner optimizer. Is another optimizer in use" in str(error), error
else:
    raise AssertionError("it has trained with another optimizer")
"""

MISUSE = PROGRAM + """
E = gradrail.InvalidArgument
model = network()
optimizer = inner(model)
for words, named in (
        ("sync_every 0: must be from 1", {"sync_every": 0}),
        ("sync_every: must be a whole number, not 2.5", {"sync_every": 2.5}),
        ("delay: must be a whole number, not True", {"sync_every": 5, "delay": True}),
        ("delay 5: must be less than sync_every / fragments, 5", {"sync_every": 5, "delay": 5}),
        ("fragments 2: sync_every, 5, must be a multiple of it", {"sync_every": 5, "fragments": 2}),
        ("fragments 7: the model has 6 parameters", {"sync_every": 7, "fragments": 7}),
        ("keep 1.5: must be 0 to 1", {"sync_every": 5, "keep": 1.5}),
        ("outer: must be Nesterov, DelayedNesterov, SGD or Adam", {"sync_every": 5, "outer": torch.optim.SGD}),
        ("every 0: must be from 1", {"sync_every": 5, "outer": T.DelayedNesterov(every=0)}),
        ("DelayedNesterov with momentum 0: use", {"sync_every": 5, "outer": T.DelayedNesterov(momentum=0)}),
        ("momentum_every: the argument of a DiLoCo is outer", {"sync_every": 5, "momentum_every": 2}),
        ("clip 0: must be at least 1.2e-38; None: no clipping", {"sync_every": 5, "clip": 0}),
        ("clip 1e-44: must be at least 1.2e-38; None: no clipping", {"sync_every": 5, "clip": 1e-44}),
        ("mode: must not be empty; omit it for the default", {"sync_every": 5, "mode": ""}),
        ("push: must not be empty", {"sync_every": 5, "push": ""}),
        ("push: must be a text, not NoneType", {"sync_every": 5, "push": None}),
        ("mode: must be a text, not int", {"sync_every": 5, "mode": 4}),
        ("clip: must be a finite number within float32, not nan", {"sync_every": 5, "clip": float("nan")}),
        ("clip: must be a number, not '1'", {"sync_every": 5, "clip": "1"}),
        ("keep: must be a number, not '0.5'", {"sync_every": 5, "keep": "0.5"}),
        ("lr: must be a number, not '0.5'", {"sync_every": 5, "outer": T.SGD("0.5")}),
        ("lr: must be a number, not True", {"sync_every": 5, "outer": T.Adam(True)}),
        ("lr 0: must be more than 0; omit it for the default", {"sync_every": 5, "outer": T.SGD(0)}),
        ("lr -1: must be more than 0; omit it for the default", {"sync_every": 5, "outer": T.Nesterov(-1)}),
        ("lr: must be a finite number within float32, not inf", {"sync_every": 5, "outer": T.DelayedNesterov(float("inf"))}),
        ("lr: must be a finite number within float32, not 1e+39", {"sync_every": 5, "outer": T.SGD(1e39)}),
        ("momentum: must be a number, not '0.9'", {"sync_every": 5, "outer": T.Nesterov(momentum="0.9")}),
        ("every 4294967296: must be from 1 to 4294967295", {"sync_every": 5, "outer": T.DelayedNesterov(every=1 << 32)}),
        ("lr of outer step 0: must be 0 or more, not -1.0", {"sync_every": 5, "outer": T.Nesterov(lambda step: -1)}),
        ("lr of outer step 0: must be a number, not None", {"sync_every": 5, "outer": T.SGD(lambda step: None)}),
        ("momentum 0: use gradrail.torch.SGD(lr)", {"sync_every": 5, "outer": T.Nesterov(0.7, 0)}),
        ("learning_rate: the argument of a DiLoCo is outer", {"sync_every": 5, "learning_rate": 0.1}),
        ("push format 'int3': there are fp32", {"sync_every": 5, "push": "int3"})):
    refused(E, words, T.DiLoCo, model, optimizer, **named)
refused(E, "lr: a DiLoCo has no such argument", T.DiLoCo, model, optimizer, sync_every=5, lr=0.1)
refused(E, "inner_optimizer: must be", T.DiLoCo, model, model.parameters(), sync_every=5)
refused(E, "parameter 0.weight: the inner optimizer does not have it", T.DiLoCo, model, inner(network()), sync_every=5)
refused(E, "momentum_every 2: the optimizer sgd has none", gradrail.join, {"w": 3}, momentum_every=2)
refused(E, "momentum_every -1: must be from 0", gradrail.join, {"w": 3}, momentum_every=-1)
step = optimizer.step
with T.DiLoCo(model, optimizer, sync_every=np.int64(1), outer=T.DelayedNesterov(every=np.int32(2))) as diloco:
    train_step(model, optimizer, 0, 0)
    other = network()
    second = {"sync_every": 1, "ps_hosts": os.environ["GRADRAIL_PS_HOSTS"], "worker_hosts": "localhost:1,localhost:2",
              "task_index": 1}
    for words, outer in (("every of outer 2 in the run, 3 at worker 1", T.DelayedNesterov(every=3)),
                         ("lr of outer 0.7 in the run, 0.5 at worker 1", T.DelayedNesterov(0.5, every=2))):
        refused(gradrail.FailedPrecondition, words, T.DiLoCo, other, inner(other), outer=outer, **second)
    refused(E, "lr: must be a number, not '0.5'", setattr, diloco, "lr", "0.5")
    for name in ("clip", "keep", "outer", "sync_every", "learning_rate", "push"):
        refused(AttributeError, "fixed for the run", setattr, diloco, name, 1)
    loss(model, *batch(0)).backward()
    model[2].bias.requires_grad_(False)
    refused(gradrail.FailedPrecondition, "2.bias requires no gradient any more", optimizer.step)
    model[2].bias.requires_grad_(True)
    model[2].bias.data = torch.zeros(3)
    model[2].bias.grad = None
    refused(gradrail.FailedPrecondition, "2.bias had the shape (24,) and has (3,) now", optimizer.step)
    model[2].bias.data = torch.zeros(24)
    model[0].weight = torch.nn.Parameter(torch.zeros(24, 12))
    refused(gradrail.FailedPrecondition, "0.weight was replaced by the program", optimizer.step)
assert optimizer.step == step
refused(gradrail.FailedPrecondition, "has left its run", diloco.__enter__)
"""


class DiLoCoTest(torch_test.TorchTest):
    def same_steps(self, **cases):
        for task in self.good_runs(SAME_STEPS, cases):
            self.assertEqual(task.text().count("difference"), len(cases))

    def test_the_steps_are_those_of_the_reference(self):
        """A delayed merge keeps the steps in between. Fragments are merged in turns."""
        self.same_steps(outer_with_momentum={"OUTER": "delayed"}, delay={"OUTER": "nesterov", "DELAY": "3"},
                        delayed_fragments={"OUTER": "nesterov", "DELAY": "3", "FRAGMENTS": "2"})

    @cluster.long("optimizer_test has the formulae; no other test has these outer optimizers")
    def test_the_steps_of_the_other_outer_optimizers_are_those_of_the_reference(self):
        self.same_steps(**{outer: {"OUTER": outer} for outer in ("nesterov", "sgd", "adam", "schedule")})

    @cluster.long("Over/ClientFragments counts the steps of each; no other test has a schedule there")
    def test_each_fragment_has_its_own_schedule_and_momentum(self):
        self.same_steps(**{outer: {"OUTER": outer, "FRAGMENTS": "2"} for outer in ("schedule", "delayed")})

    @cluster.long("wrong_arguments_and_models_are_refused has the limits of clip; no other test clips")
    def test_each_difference_is_clipped_before_the_mean(self):
        self.same_steps(whole={"OUTER": "nesterov", "CLIP": "0.5"},
                        fragments={"OUTER": "nesterov", "CLIP": "0.5", "FRAGMENTS": "2"})

    @cluster.long("TrainingOptions and optimizer_test have the rule; no other DiLoCo is in async")
    def test_merges_of_single_learners_update_the_momentum_in_turns(self):
        self.assertEqual(self.good_run(ASYNC).text().count("agrees"), 2)
        nesterov = ASYNC.replace("T.DelayedNesterov(0.7, 0.9)", "T.Nesterov(0.01, 0.9)").partition("\ncommon = ")[0]
        for mode in ("async", "quorum:1"):
            alone = nesterov.replace('mode="async"', f'mode="{mode}"')
            self.assertIn(f"DiLoCo in mode {mode} with outer=Nesterov", self.good_run(alone).text())

    @cluster.long("NonFinite finds what was sent; no other test has such a learner")
    def test_a_diverged_learner_sends_nothing(self):
        for push in ("fp32", "int4"):
            task = self.good_run(DIVERGED, "--restarts", 1,
                                 environment={"MARKER": str(self.folder / f"diverged-{push}"), "PUSH": push})
            self.assertEqual(task.text().count("] ended"), 2)
            self.assertIn("weight: the difference has values that are not finite: this learner has diverged after 15 inner "
                          "steps, and has sent nothing", task.text())

    @cluster.long("a_killed_learner_joins_again has one fragment")
    def test_a_later_learner_takes_the_fragments_in_the_order_of_the_others(self):
        task = self.good_run(KILLED, "--restarts", 1, environment={"MARKER": str(self.folder / "killed"), "FRAGMENTS": "5"})
        self.assertEqual(task.text().count("] ended"), 2)
        self.assertIn("is started again", task.text())

    @cluster.long("Every/ClientFormats has the bits; no other test has the warning and the costs of DiLoCo")
    def test_formats_train_as_well(self):
        figures = {}
        for push in ("fp32", "bf16", "int8", "int4", "topk:10"):
            text = self.good_run(FORMATS, environment={"PUSH": push}).text()
            figures[push] = [(float(words[2]), int(words[4])) for words in
                             (line.split() for line in text.splitlines()) if len(words) > 4 and words[1] == "cost"]
            self.assertEqual(len(figures[push]), 2, text)
        # The chief alone has offered initial values: the sum does not depend on the order of the lines.
        pushed = {push: sum(bytes_pushed for _, bytes_pushed in workers) for push, workers in figures.items()}
        momentum = FORMATS.replace('T.SGD(0.7) if push.startswith("topk") else ', "")
        self.assertIn("DiLoCo with push=topk:10 and outer=Nesterov", self.good_run(momentum, environment={"PUSH": "topk:10"}).text())
        cost = figures["fp32"][0][0]
        for push, least, most in (("bf16", 1.9, 1.05), ("int8", 3.3, 1.05), ("int4", 5.0, 1.3),
                                  ("topk:10", 5.0, 1.3)):
            for other_cost, _ in figures[push]:
                self.assertLess(other_cost, cost * most, push)
            self.assertGreater(pushed["fp32"] / pushed[push], least, push)

    @cluster.long("Every/ClientReturns has the bits; no other DiLoCo has return_format")
    def test_parameters_return_in_short_formats(self):
        costs = {}
        for format, least, most in (("fp32", 1.0, 1.0), ("bf16", 0.45, 0.65), ("delta", 0.1, 0.65)):
            text = self.good_run(FORMATS, environment={"PUSH": "int4", "RETURN": format}).text()
            found = re.findall(r"cost (\S+) pushed \d+ returned (\S+)", text)
            self.assertEqual(len(found), 2, text)
            costs[format] = {float(cost) for cost, _ in found}
            for cost, returned in found:
                self.assertTrue(least <= float(returned) <= most, text)
                self.assertLess(float(cost), max(costs["fp32"]) * 1.1, format)
        self.assertEqual(costs["bf16"], costs["delta"])

    def test_schedulers_and_closures_of_the_inner_optimizer(self):
        self.good_run(SCHEDULED)

    @cluster.long("torch_test has an Exchange in bfloat16; no other DiLoCo has it")
    def test_a_model_in_bfloat16_has_common_parameters_in_float32(self):
        self.good_run(HALF)
        self.good_run(QUARTERS, workers=1)

    def test_a_killed_learner_joins_again(self):
        task = self.good_run(KILLED, "--restarts", 1, environment={"MARKER": str(self.folder / "killed")})
        self.assertEqual(task.text().count("] ended"), 2)
        self.assertIn("is started again", task.text())

    def test_an_optimizer_that_replaces_the_inner_one_is_found(self):
        self.good_run(REPLACED, workers=1)

    def test_wrong_arguments_and_models_are_refused(self):
        _, environment = self.start_server(1)
        self.good_run(MISUSE + RATES, workers=1, environment={"OTHER_PS_HOSTS": environment(0)["GRADRAIL_PS_HOSTS"]})


if __name__ == "__main__":
    unittest.main()
