"""gradrail.torch.MeanExchange: the optimizers of PyTorch with the mean gradients of all workers."""
import unittest

import cluster
import torch_test

PROGRAM = torch_test.PROGRAM

MEAN_HOOK = PROGRAM + """
import gradrail.torch, torch.distributed as dist
rank = int(os.environ["GRADRAIL_TASK_INDEX"])
dist.init_process_group("gloo", init_method="file://" + os.environ["STORE"], rank=rank, world_size=WORKERS)
DDP = torch.nn.parallel.DistributedDataParallel
models = [DDP(network(), bucket_cap_mb=0.001) for _ in range(2)]
state = gradrail.torch.MeanExchange(models[0].module)
models[0].register_comm_hook(state, gradrail.torch.ddp_mean_hook)
optimizers = [torch.optim.AdamW(model.parameters(), lr=0.01) for model in models]
for step in range(STEPS):
    for model, optimizer in zip(models, optimizers):
        optimizer.zero_grad()
        loss(model, *batch(step, rank)).backward()
    for ours, theirs in zip(models[0].parameters(), models[1].parameters()):
        assert (ours.grad - theirs.grad).abs().max() < 1e-6, step
    for optimizer in optimizers:
        optimizer.step()
assert difference(*models) < 1e-5, difference(*models)
assert state.client.global_step == STEPS
state.leave()
dist.barrier()
print("difference", difference(*models), flush=True)
"""

# Three workers average, clip and make the update of torch.optim, beside one process with the batches of all. The
# workers begin with other values than the chief. One layer has a gradient at one worker in half of the steps, another
# layer has none.
MEAN_CLIPPED = PROGRAM + """
WORKERS, kind = 3, os.environ["OPTIMIZER"]

class Network(torch.nn.Module):
    def __init__(self, seed=0):
        super().__init__()
        self.layers = network(seed)
        self.sometimes, self.never = torch.nn.Linear(5, 5), torch.nn.Linear(5, 5)
        self.scale = torch.nn.Parameter(torch.tensor(0.7 + seed))
        self.frozen = torch.nn.Parameter(torch.tensor(1.0), requires_grad=False)

    def forward(self, x, more):
        y = self.layers(x) * self.scale * self.frozen
        return self.sometimes(y) if more else y

def optimizer_of(model):
    layers = list(model.layers.parameters())
    others = [parameter for parameter in model.parameters() if all(parameter is not layer for layer in layers)]
    if kind == "momentum":
        groups = [{"params": layers, "lr": 0.02}, {"params": others, "weight_decay": 0.1}]
        return torch.optim.SGD(groups, lr=0.05, momentum=0.9, dampening=0.1)
    return torch.optim.AdamW(model.parameters(), lr=0.002, amsgrad=True)

def backward(model, step, worker, weight=1.0):
    x, y = batch(step, worker)
    (((model(x, worker == 1 and step % 2) - y) ** 2).mean() * weight).backward()

def clip(model):
    return torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)

rank = int(os.environ["GRADRAIL_TASK_INDEX"])
torch.manual_seed(0)
single = Network()
begin = [parameter.detach().clone() for parameter in single.parameters()]
torch.manual_seed(rank)
model = Network(seed=rank)
reference, optimizer, clipped = optimizer_of(single), optimizer_of(model), 0
with gradrail.torch.MeanExchange(model) as mean:
    assert difference(model, single) == 0, "the worker does not begin with the parameters of the chief"
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        backward(model, step, rank)
        mean.average()
        norm = clip(model)
        optimizer.step()
        reference.zero_grad(set_to_none=True)
        for worker in range(WORKERS):
            backward(single, step, worker, 1 / WORKERS)
        assert abs(norm - clip(single)) < 1e-4 * norm
        clipped += int(norm > 0.1)
        reference.step()
        for name, parameter in model.named_parameters():
            absent = name.startswith(("never", "frozen")) or name.startswith("sometimes") and step % 2 == 0
            assert (parameter.grad is None) == absent, (name, step)
    assert mean.client.global_step == STEPS
apart, moved = difference(model, single), max((a - b).abs().max() for a, b in zip(begin, single.parameters()))
assert apart < 1e-5 and moved > 1e-2 and clipped > 10, (apart, moved, clipped)
print(f"{kind}: difference {apart:.2e}, moved by {moved:.2e}, {clipped} clipped", flush=True)
"""


class MeanGradients(torch_test.TorchTest):
    @cluster.long("the_mean_hook_equals_all_reduce begins with equal workers and does not clip")
    def test_clipped_means_equal_one_process(self):
        for kind in ("momentum", "amsgrad"):
            with self.subTest(kind=kind):
                self.good_run(MEAN_CLIPPED, "--ps", 2, workers=3, environment={"OPTIMIZER": kind})

    def test_the_mean_hook_equals_all_reduce(self):
        self.good_run(MEAN_HOOK, environment={"STORE": str(self.folder / "store")})

    def test_mean_gradients_of_every_form(self):
        """Other dtypes, a sparse gradient, a gradient of the program, one of the step before, and a worker that leaves."""
        self.good_run(PROGRAM + """
table = torch.nn.Embedding(6, 3, sparse=True)
model = torch.nn.ModuleDict({"table": table, "small": torch.nn.Linear(3, 2).to(torch.bfloat16), "last": torch.nn.Linear(1, 1)})
model["shared"] = table
mean = gradrail.torch.MeanExchange(model)
assert "shared.weight" not in mean.client.parameters
rank = mean.client.task_index
for step in range(3):
    table.weight.grad = None
    table(torch.tensor([rank, 5])).sum().backward()
    model["small"].weight.grad = torch.full((2, 3), 1.0 + rank, dtype=torch.bfloat16)
    if rank == 1:                                    # accumulates on the mean of the step before
        model["last"](torch.ones(1)).sum().backward()
    mean.average()
    expected = torch.zeros(6, 3)
    expected[:2], expected[5] = 0.5, 1.0
    assert torch.equal(table.weight.grad, expected), table.weight.grad
    half = model["small"].weight.grad
    assert half.dtype == torch.bfloat16 and torch.equal(half.float(), torch.full((2, 3), 1.5)), half
    assert model["small"].bias.grad is None
    if rank == 0:
        assert abs(model["last"].bias.grad.item() - (step + 1) / 2) < 1e-6, (step, model["last"].bias.grad)
mean.client.barrier("three steps")
if rank == 0:
    mean.leave()
    open(os.environ["LEFT"], "w").close()
else:
    while not os.path.exists(os.environ["LEFT"]):
        time.sleep(0.01)
    model["small"].weight.grad = torch.ones(2, 3, dtype=torch.bfloat16)
    mean.average()
    assert torch.equal(model["small"].weight.grad.float(), torch.ones(2, 3))
    mean.leave()
""", environment={"LEFT": str(self.folder / "left")})


if __name__ == "__main__":
    unittest.main()
