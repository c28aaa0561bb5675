"""gradrail.torch: changes of the program that torch does not count, memory that parameters share, and kinds of models. Each
is supported or refused, and the remedy of each text works."""
import pathlib
import unittest

import cluster
import package

PROGRAM = f"""
import copy, functools, gc, warnings, weakref
sys.path.insert(0, {str(pathlib.Path(__file__).resolve().parent)!r})
import own_servers
import torch
import gradrail.torch
warnings.simplefilter("ignore")
torch.set_num_threads(1)
F, I = gradrail.FailedPrecondition, gradrail.InvalidArgument
NOWHERE = dict(ps_hosts="127.0.0.1:1", worker_hosts="localhost:3000", task_index=0, join_timeout=0.01)
servers = own_servers.OwnServers(1)

def run(make, model, **options):
    "An Exchange or the like, with a server of its own."
    process, where = servers.next()
    if make is gradrail.torch.Exchange:
        options = dict(lr=0.1, mode="sync", **options)
    return make(model, **options, **where[0])

Exchange, Mean = gradrail.torch.Exchange, gradrail.torch.MeanExchange

class Saved:
    pass

class Double(torch.nn.Module):
    def forward(self, weight):
        return weight * 2

class Wrapper(torch.nn.Module):
    def __init__(self, model, name):
        super().__init__()
        setattr(self, name, model)

def linear(size=4):
    torch.manual_seed(1)
    return torch.nn.Linear(size, 3)

class Mine(Exchange):
    def __init__(self, model, **options):
        self.model, self.mode = model, "mine"
        super().__init__(model, **options)

x = torch.linspace(-1, 1, 8).reshape(2, 4)
loss = lambda model: model(x).square().mean()
def difference(model, other):
    return max((a.double() - b.double()).abs().max().item() for a, b in zip(model.parameters(), other.parameters(), strict=True))
"""

END = """
servers.close()
sys.stdout.flush()
os._exit(0)
"""


class TorchChanges(package.PackageTest):
    MODULES = ("numpy", "torch")

    def check(self, program, **environment):
        self.assert_ends(self.start_program(PROGRAM + program + END, environment), cluster.GOOD, 3 * cluster.FINISH)

    def test_a_changed_gradient_is_refused_or_sent(self):
        self.check("""
def other_data(grad, view):
    grad.data = grad.data * 0.5
changes = {
    "data": lambda grad, view: grad.data.clamp_(-1e-3, 1e-3),
    "value": lambda grad, view: torch.nn.utils.clip_grad_value_(model.parameters(), 1e-3),
    "norm": lambda grad, view: torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3),
    "numpy": lambda grad, view: grad.numpy().fill(1),
    "memory": lambda grad, view: memoryview(grad.numpy().reshape(-1)).cast("B").__setitem__(slice(4, 8), bytes(4)),
    "dlpack": lambda grad, view: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(grad)).mul_(2),
    "foreach": lambda grad, view: torch._foreach_mul_([p.grad.data for p in model.parameters()], 2),
    "view": lambda grad, view: view.mul_(2),
    "other data": other_data,
    "one": lambda grad, view: grad.data.view(-1)[-1:].fill_(7),
}
for dtype in (torch.float32, torch.float64):
    for name, change in changes.items():
        for sent in (False, True):
            model = linear().to(dtype)
            x = x.to(dtype)
            with run(Exchange, model) as exchange:
                loss(model).backward()
                exchange.step()
                single, view = copy.deepcopy(model), model.weight.grad.detach()
                with exchange.accumulate():
                    loss(model).backward()
                if sent:
                    exchange.zero_grad()
                    loss(model).backward()
                change(model.weight.grad, view)
                if sent:
                    for _ in range(2):
                        refused(F, "the gradient of weight was changed between backward() and step()", exchange.step)
                    continue
                for p, own in zip(single.parameters(), model.parameters()):
                    p.grad = own.grad.detach().clone()
                torch.optim.SGD(single.parameters(), lr=0.1).step()
                exchange.step()
                assert difference(model, single) < 1e-6, (name, dtype, difference(model, single))
def set_grad(values):
    model.weight.grad.data = values
def set_weight(values):
    model.weight.data = values
for words, change in (("the gradient of weight was changed", lambda: set_grad(torch.ones(1))),
                      ("the gradient of weight was changed", lambda: set_grad(model.weight.grad.data[:1])),
                      ("weight was moved or converted", lambda: set_weight(model.weight.data[:2]))):
    model, x = linear().float(), x.float()
    with run(Exchange, model) as exchange:
        loss(model).backward()
        change()
        refused(F, words, exchange.step)
""")

    def test_a_gradient_that_was_changed_and_restored_is_the_first_one(self):
        # The server reads the gradient at any time before the end of the step, also between the two changes.
        self.check("""
model, single = torch.nn.Linear(2000, 1000), torch.nn.Linear(2000, 1000)
single.load_state_dict(model.state_dict())
x, optimizer = torch.full((2, 2000), 0.02), torch.optim.SGD(single.parameters(), lr=0.1)
with run(Exchange, model) as exchange:
    for _ in range(20):
        model(x).square().sum().backward()
        for _ in range(10):
            model.weight.grad.data.neg_()
        exchange.step()
        optimizer.zero_grad()
        single(x).square().sum().backward()
        optimizer.step()
assert difference(model, single) < 1e-5, difference(model, single)
""")

    def test_changed_weights_are_refused_and_the_remedies_work(self):
        self.check("""
def other_data(w):
    w.data = w.data * 0.5
def set_storage(w):
    with torch.no_grad():
        w.set_(w.detach() * 0.5)
changes = {
    "clamp": lambda w: w.data.clamp_(-0.01, 0.01), "fill": lambda w: w.data.fill_(0.5), "numpy": lambda w: w.detach().numpy().fill(1),
    "one": lambda w: w.data.view(-1)[-1:].add_(1), "foreach": lambda w: torch._foreach_mul_([w.data], 0.5),
    "nan": lambda w: w.data.fill_(float("nan")),
    "load": lambda w: model.load_state_dict({name: value * 2 for name, value in model.state_dict().items()}),
    "other data": other_data, "set_": set_storage,
}
for name, change in changes.items():
    for late in (False, True):
        model = linear()
        with run(Exchange, model) as exchange:
            loss(model).backward()
            exchange.step()
            if not late:
                change(model.weight)
            loss(model).backward()
            if late:
                change(model.weight)
            error = refused(F, "weight was changed by the program", exchange.step)
            assert "make the Exchange after" in str(error), error

# The servers would save other values.
for change in changes.values():
    model = linear()
    with run(Exchange, model) as exchange:
        loss(model).backward()
        exchange.step()
        change(model.weight)
        refused(F, "weight was changed by the program", exchange.save_checkpoint)

# Assignments that would have no effect.
model = linear()
with Mine(model, **servers.next()[1][0]) as mine:
    assert mine.model is model and mine.mode == "mine"
for make, remedy in ((Exchange, "make another Exchange; its lr can be set"), (Mean, "the optimizer of torch has the rate")):
    model = linear()
    with run(make, model) as joined:
        refused(AttributeError, remedy, setattr, joined, "learning_rate", 0.5)
        for name in ("mode", "model", "weight_decay"):
            refused(AttributeError, "fixed for the run", setattr, joined, name, 1)

# A swap of weights for an evaluation, and the former ones before step().
model, single = linear(), linear()
average, optimizer = linear().state_dict(), torch.optim.SGD(single.parameters(), lr=0.1)
with run(Exchange, model) as exchange:
    for step in range(4):
        before = model.weight.detach().clone()
        loss(model).backward()
        assert torch.equal(model.weight, before), "the fresh parameters arrived before step()"
        former = copy.deepcopy(model.state_dict())
        if step % 2:
            model.load_state_dict(average)
            model.load_state_dict(former)
        else:
            for name, parameter in model.named_parameters():
                parameter.data.copy_(average[name])
                parameter.data.copy_(former[name])
        exchange.step()
        optimizer.zero_grad(); loss(single).backward(); optimizer.step()
assert difference(model, single) < 1e-6

# A backward pass that is dropped.
model = linear()
with run(Exchange, model) as exchange:
    loss(model).backward()
    refused(F, "exchange.accumulate()", exchange.zero_grad)
    exchange.step()
    before = model.weight.detach().clone()
    with exchange.accumulate():
        loss(model).backward()
    exchange.zero_grad()
    exchange.step()
    assert torch.equal(model.weight, before)

def mean_steps(count, model, single, mean, change=None):
    for step in range(count):
        for one in (model, single):
            optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
            optimizer.zero_grad()
            loss(one).backward()
            if one is model:
                mean.average()
            optimizer.step()
            for parameter in one.parameters() if change else ():
                parameter.data = change(parameter)

# MeanExchange keeps a clamp in each step, also in other memory, and the renormalization of an embedding.
for replaces in (False, True):
    model, single = linear(), linear()
    with run(Mean, model) as mean:
        clamp = torch.Tensor.clamp if replaces else torch.Tensor.clamp_
        mean_steps(4, model, single, mean, lambda parameter: clamp(parameter.data, -0.05, 0.05))
    assert difference(model, single) < 1e-6 and model.weight.abs().max() <= 0.05

def words(kind=torch.nn.Embedding):
    torch.manual_seed(1)
    return torch.nn.Sequential(kind(6, 4, max_norm=0.1), torch.nn.Linear(4, 1))
for kind in (torch.nn.Embedding, torch.nn.EmbeddingBag):
    refused(I, "0: max_norm=0.1 changes the weight in forward()", Exchange, words(kind), **NOWHERE)
model, single, x = words(), words(), torch.tensor([1, 5])
with run(Mean, model) as mean:
    mean_steps(3, model, single, mean)
assert difference(model, single) < 1e-6
frozen = words()
frozen[0].weight.requires_grad_(False)
with run(Exchange, frozen) as exchange:
    loss(frozen).backward()
    exchange.step()
""")

    def test_two_models_of_one_worker_share_a_mean(self):
        self.check("""
def pair():
    torch.manual_seed(3)
    return torch.nn.Linear(2, 4), torch.nn.Linear(4, 1)
sgd = lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
first, second = pair()
process, where = servers.next()
with Exchange(first, **where[0]):
    error = refused(gradrail.AlreadyExists, "as in a GAN, have one gradrail.torch.MeanExchange", Exchange, second, **where[0])
results = []
for average in (True, False):
    generator, critic = pair()
    mean = run(Mean, torch.nn.ModuleList([generator, critic])) if average else None
    for step in range(6):
        noise, real = torch.full((3, 2), 0.1 * step), torch.ones(3, 4)
        optimizer = sgd(critic) if step == 0 else optimizer
        of_generator = sgd(generator) if step == 0 else of_generator
        optimizer.zero_grad()
        (critic(generator(noise).detach()).mean() - critic(real).mean()).backward()
        if average: mean.average()
        optimizer.step()
        of_generator.zero_grad()
        (-critic(generator(noise)).mean()).backward()
        if average: mean.average()
        of_generator.step()
    results.append(torch.nn.ModuleList([generator, critic]))
    if average: mean.leave()
assert difference(*results) < 1e-6, difference(*results)
""")

    def test_shared_memory_is_kept_or_refused(self):
        self.check("""
def tied():
    torch.manual_seed(1)
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2, bias=False), "b": torch.nn.Linear(2, 2, bias=False)})
    model["b"].weight.data = model["a"].weight.data
    return model
def part():
    model, flat = tied(), torch.randn(7)
    model["a"].weight.data, model["b"].weight.data = flat[:4].view(2, 2), flat[3:].view(2, 2)
    return model
def rows():
    model, flat = tied(), torch.randn(4, 2)
    model["a"].weight.data, model["b"].weight.data = flat[::2], flat[1:3]
    return model
inner = lambda model: torch.optim.SGD(model.parameters(), lr=0.1)
for make in (tied, part, rows):
    model = make()
    for call in (lambda: Exchange(model, **NOWHERE), lambda: gradrail.torch.DiLoCo(model, inner(model), sync_every=2, **NOWHERE)):
        refused(I, "a.weight and b.weight: share memory", call)
model = tied()
model["a"].weight = torch.nn.Parameter(torch.zeros(1).expand(2, 2))
refused(I, "a.weight: its elements share memory", Exchange, model, **NOWHERE)

# Other memory with the same values is no change, and a tie is one.
model = tied()
model["b"].weight.data = model["a"].weight.data.clone()
with run(Exchange, model) as exchange:
    (model["a"](torch.ones(1, 2)) + model["b"](torch.ones(1, 2))).sum().backward()
    exchange.step()
    before = model["a"].weight.detach().clone()
    model.share_memory()
    model["b"].weight.data = model["b"].weight.data.clone()
    (model["a"](torch.ones(1, 2)) + model["b"](torch.ones(1, 2))).sum().backward()
    exchange.step()
    assert torch.equal(model["a"].weight, model["b"].weight) and torch.equal(model["a"].weight, before - 0.1)
    model["b"].weight.data = model["a"].weight.data
    for _ in range(2):
        model["a"](torch.ones(1, 2)).sum().backward()
        refused(F, "a.weight and b.weight: share memory", exchange.step)

# The remedies: one Parameter, a clone, MeanExchange.
model = tied()
model["b"].weight = model["a"].weight
with run(Exchange, model) as exchange:
    model["a"](torch.ones(1, 2)).sum().backward()
    exchange.step()
    assert torch.equal(model["a"].weight, model["b"].weight)
model = tied()
model["b"].weight.data = model["b"].weight.data.clone()
with run(Exchange, model) as exchange:
    model["a"](torch.ones(1, 2)).sum().backward()
    exchange.step()
    assert not torch.equal(model["a"].weight, model["b"].weight)
model, single = tied(), tied()
with run(Mean, model) as mean:
    for one in (model, single):
        one["b"](one["a"](torch.ones(1, 2))).sum().backward()
        if one is model:
            mean.average()
        inner(one).step()
    assert difference(model, single) < 1e-6 and torch.equal(model["a"].weight, model["b"].weight)

# Memory that is no other parameter's stays shared: a flat buffer, columns of a matrix, buffers, other processes.
model = tied()
flat, matrix = torch.randn(8), torch.randn(2, 4)
model["a"].weight.data, model["b"].weight.data = flat[:4].view(2, 2), flat[4:].view(2, 2)
model["c"], model["d"] = torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False)
model["c"].weight.data, model["d"].weight.data = matrix[:, :2], matrix[:, 2:]
model.register_buffer("row", model["a"].weight.data[0])
single = torch.nn.ModuleDict({name: torch.nn.Linear(2, 2, bias=False) for name in "abcd"})
single.load_state_dict({name: value for name, value in model.state_dict().items() if name != "row"})
chain = lambda one: one["d"](one["c"](one["b"](one["a"](torch.ones(1, 2))))).sum()
with run(Exchange, model) as exchange:
    for _ in range(3):
        chain(model).backward()
        exchange.step()
        chain(single).backward()
        inner(single).step()
        single.zero_grad()
assert difference(model, single) < 1e-6
assert torch.equal(flat[:4].view(2, 2), model["a"].weight) and torch.equal(model.row, model["a"].weight[0])
assert torch.equal(matrix[:, 2:], model["d"].weight)

model = linear()
model.share_memory()
read, write = os.pipe()
go, begin = os.pipe()
child = os.fork()
if child == 0:
    os.read(go, 1)
    os.write(write, model.weight.detach().numpy().tobytes())
    os._exit(0)
with run(Exchange, model) as exchange:
    loss(model).backward()
    exchange.step()
os.write(begin, b"1")
assert os.read(read, 1000) == model.weight.detach().numpy().tobytes(), "the other process has other weights"
os.waitpid(child, 0)
""")

    def test_a_second_derivative_leaves_nothing_behind(self):
        self.check("""
kept = []
def pack(tensor):
    saved = Saved()
    saved.tensor = tensor
    kept.append(weakref.ref(saved))
    return saved
model = linear()
with run(Exchange, model) as exchange:
    for accumulate in (False, True, False):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved.tensor):
            output = loss(model)
            if accumulate:
                with exchange.accumulate():
                    output.backward(create_graph=True)
            else:
                output.backward(create_graph=True)
        del output
        exchange.step()
        for parameter in model.parameters():
            assert parameter.grad.grad_fn is None and not parameter.grad.requires_grad and parameter.grad.abs().max() == 0
        gc.collect()
        assert kept and not any(one() for one in kept), "the graph of a step is kept"
    loss(model).backward()
    exchange.step()

# As after a step of torch, an old graph is refused: its weights have changed.
model = torch.nn.Sequential(linear(), torch.nn.Linear(3, 3))
with run(Exchange, model) as exchange:
    output = loss(model)
    output.backward(retain_graph=True)
    exchange.step()
    try:
        output.backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error), error
    else:
        raise AssertionError("a stale graph computed with fresh weights")
""")

    def test_each_kind_of_module_trains_as_in_torch_or_is_refused_before_the_join(self):
        self.check("""
utils = torch.nn.utils
def mlp(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
def parametrized():
    model = mlp()
    utils.parametrize.register_parametrization(model[0], "weight", Double())
    return model
def transposed():
    model = mlp()
    model[0].weight = torch.nn.Parameter(torch.linspace(-1, 1, 16).reshape(4, 4).t())
    return model
def sparse():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Embedding(6, 4, sparse=True), torch.nn.Linear(4, 1))
kinds = {
    "plain": mlp, "traced": lambda: torch.jit.trace(mlp(), x), "script": lambda: torch.jit.script(mlp()),
    "DataParallel": lambda: torch.nn.DataParallel(mlp()), "parametrized": parametrized, "transposed": transposed,
    "weight_norm": lambda: utils.weight_norm(mlp()[0]), "spectral_norm": lambda: utils.spectral_norm(mlp()[0]),
    "double": lambda: mlp().double(), "sparse": sparse,
}
if hasattr(torch, "compile"):
    kinds["compiled"] = lambda: torch.compile(mlp(), backend="eager")
for name, make in kinds.items():
    data = torch.tensor([1, 5]) if name == "sparse" else x.double() if name == "double" else x
    model, single = make(), make()
    reference = torch.optim.SGD(single.parameters(), lr=0.1, momentum=0.9)
    with run(Exchange, model, optimizer="momentum") as exchange:
        for _ in range(5):
            model(data).square().mean().backward()
            exchange.step()
            reference.zero_grad()
            single(data).square().mean().backward()
            for parameter in single.parameters():
                if parameter.grad is not None and parameter.grad.is_sparse:
                    parameter.grad = parameter.grad.to_dense()  # SGD with momentum has no sparse form
            reference.step()
    assert difference(model, single) < 1e-6, (name, difference(model, single))

for name in ("traced", "script"):
    model, single = kinds[name](), kinds[name]()
    optimizer, reference = (torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, single))
    averages = name == "traced"
    learner = run(Mean, model) if averages else run(functools.partial(gradrail.torch.DiLoCo, sync_every=2), model,
                                                    inner_optimizer=optimizer, outer=gradrail.torch.SGD(lr=1.0))
    with learner:
        for _ in range(4):
            for one, update in ((model, optimizer), (single, reference)):
                update.zero_grad()
                loss(one).backward()
                if one is model and averages:
                    learner.average()
                update.step()
    assert difference(model, single) < 1e-6, (name, difference(model, single))

def with_weight(weight):
    model = linear()
    del model.weight
    model.weight = weight
    return model
def inference():
    with torch.inference_mode():
        return linear()
import torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + os.environ["STORE"], rank=0, world_size=1)
FullyShardedDataParallel = type("FullyShardedDataParallel", (torch.nn.Sequential,), {})
copied = torch.jit.trace(mlp(), x)
for text, model in (
        ("parameter weight: has no shape yet", torch.nn.LazyLinear(3)),
        ("parameter 0.weight: is on the device meta", mlp().to("meta")),
        ("parameter weight: is a torch.sparse_coo", with_weight(torch.nn.Parameter(torch.eye(3).to_sparse()))),
        ("parameter weight: was made in torch.inference_mode()", inference()),
        ("the model: FullyShardedDataParallel", FullyShardedDataParallel(linear())),
        ("the model: DistributedDataParallel averages", torch.nn.parallel.DistributedDataParallel(linear())),
        ("model: must be a torch.nn.Module", lambda: None)):
    refused(I, text, Exchange, model, **NOWHERE)
if not all(parameter.is_leaf for parameter in copy.deepcopy(copied).parameters()):
    refused(I, "is the result of a computation", Exchange, copy.deepcopy(copied), **NOWHERE)

# A parameter that is frozen later: plain SGD leaves it, and the others would move it.
for optimizer, moves in (("sgd", False), ("momentum", True), ("adamw", True)):
    model = linear()
    with run(Exchange, model, optimizer=optimizer) as exchange:
        loss(model).backward()
        exchange.step()
        model.bias.requires_grad_(False)
        before = model.bias.clone()
        loss(model).backward()
        if moves:
            refused(F, "bias requires no gradient any more", exchange.step)
        else:
            exchange.step()
            assert torch.equal(model.bias, before)
            model.bias.requires_grad_(True)
            loss(model).backward()
            exchange.step()
            assert not torch.equal(model.bias, before)
""", STORE=str(self.folder / "store"))

    def test_a_file_of_a_wrapped_model_names_its_prefix(self):
        self.check("""
load, save = gradrail.torch.load_state, gradrail.torch.save_state
for name in ("_orig_mod", "module", "net"):
    plain, wrapped = (os.path.join(os.environ["FOLDER"], f"{name}-{kind}.safetensors") for kind in ("plain", "wrapped"))
    trained = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 3))
    adam = torch.optim.Adam(trained.parameters())
    trained(x).sum().backward()
    adam.step()
    save(plain, trained, adam)
    save(wrapped, Wrapper(trained, name), adam)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 3))
    for optimizer in (None, torch.optim.Adam(model.parameters()), torch.optim.SGD(model.parameters(), lr=1)):
        error = refused(I, f"its names have the prefix {name}. (", load, wrapped, model, optimizer)
        how = {"_orig_mod": "torch.compile(model)", "module": "torch.nn.DataParallel(model)", "net": "a module that has"}[name]
        rest = ", optimizer)" if optimizer else ")"
        assert f"load_state(path, {how}" in str(error) and str(error).endswith(rest), error
        error = refused(I, f"its names have no prefix", load, plain, Wrapper(model, name), optimizer)
        assert f"load_state(path, model.{name}{rest}" in str(error), error
    optimizer = torch.optim.Adam(model.parameters())
    assert load(plain, Wrapper(model, name)._modules[name], optimizer) == 1 and difference(model, trained) == 0
    again = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 3))
    way = {"_orig_mod": getattr(torch, "compile", None), "module": torch.nn.DataParallel}.get(name)
    wrapper = Wrapper(again, name) if way is None else way(again)
    assert load(wrapped, wrapper, torch.optim.Adam(again.parameters())) == 1 and difference(again, trained) == 0
""", FOLDER=str(self.folder))

    def test_a_file_fills_frozen_parameters_and_names_what_the_model_lacks(self):
        self.check("""
trained = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 3))
sgd = torch.optim.SGD(trained.parameters(), lr=0.1, momentum=0.9)
trained(x).sum().backward()
sgd.step()
path = os.path.join(os.environ["FOLDER"], "trained.safetensors")
gradrail.torch.save_state(path, trained, sgd)
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 3))
model[0].requires_grad_(False)
gradrail.torch.load_state(path, model)
assert difference(model, trained) == 0 and not model[0].weight.requires_grad
shorter = torch.nn.Sequential(torch.nn.Linear(4, 3))
before = shorter[0].weight.clone()
refused(I, "has 1.bias, 1.weight, which the model has not", gradrail.torch.load_state, path, shorter)
assert torch.equal(shorter[0].weight, before)
""", FOLDER=str(self.folder))


if __name__ == "__main__":
    unittest.main()
