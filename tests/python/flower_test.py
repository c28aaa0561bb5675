"""gradrail.flower: rounds of Flower with the parameter servers as transport, beside averages of NumPy."""
import unittest

import cluster
import federation
import package

PROGRAM = federation.PROGRAM + f"""
PATIENCE = {cluster.PATIENCE}
"""

AVERAGE = PROGRAM + """
ROUNDS = 5
ours, result, grid = run(3, ROUNDS)
expected = initial()
for step in range(1, ROUNDS + 1):
    expected = mean(expected, EXAMPLES, step)
    total = result.evaluate_metrics_clientapp[step]["total"]
    assert abs(total - sum(value.sum() for value in expected.values())) < 1e-4, "evaluated other arrays"
    assert abs(result.train_metrics_clientapp[step]["node"] - (1 * 10 + 2 * 3 + 3 * 25) / 38) < 1e-6
moved = apart(ours, initial())
assert apart(ours, expected) < 1e-6 and moved > 0.1, (apart(ours, expected), moved)
assert grid.bytes < 1500 * 2 * 3 * ROUNDS, f"{grid.bytes} bytes in messages of Flower"
print(f"difference {apart(ours, expected):.1e}, moved by {moved:.2f}", flush=True)
"""

# FedAdam and FedAvgM of Reddi et al. (arXiv 2003.00295), with the bias correction of Kingma and Ba.
OPTIMIZERS = PROGRAM + """
ROUNDS = 4
kind = os.environ["KIND"]
options = {"adam": {"optimizer": "adam", "learning_rate": 0.1, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-3},
           "momentum": {"optimizer": "momentum", "learning_rate": 0.5, "momentum": 0.8}}[kind]
ours, _, _ = run(3, ROUNDS, fraction_evaluate=0.0, **options)
common = initial()
first, second = ({name: np.zeros(shape) for name, shape in SHAPES.items()} for _ in range(2))
for step in range(1, ROUNDS + 1):
    target = mean({name: np.asarray(value, np.float32) for name, value in common.items()}, EXAMPLES, step)
    for name in SHAPES:
        delta = common[name] - target[name]
        if kind == "adam":
            first[name] = 0.9 * first[name] + 0.1 * delta
            second[name] = 0.99 * second[name] + 0.01 * delta ** 2
            rate = 0.1 * np.sqrt(1 - 0.99 ** step) / (1 - 0.9 ** step)
            common[name] = common[name] - rate * first[name] / (np.sqrt(second[name]) + 1e-3)
        else:
            first[name] = 0.8 * first[name] + delta
            common[name] = common[name] - 0.5 * first[name]
assert apart(ours, common) < 2e-6 and apart(ours, initial()) > 0.05, apart(ours, common)
print(f"{kind}: difference {apart(ours, common):.1e}", flush=True)
"""

KILLED = PROGRAM + """
def accident(node, step):
    if node == 2 and step == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if node == 1 and step == 2:
        time.sleep(1)      # it sends its difference after the loss

ours, result, _ = run(int(os.environ["QUORUM"]), 3, fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3)
expected = initial()
for step, nodes in ((1, [1, 2, 3]), (2, [1, 3]), (3, [1, 2, 3])):
    expected = mean(expected, nodes, step)
"""

# A spare client replaces a killed one. After a failure and a time limit, the strategy completes the quorum.
SPARE = PROGRAM + """
def accident(node, step):
    if node == 2 and step == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if node == 1 and step == 2:
        raise ValueError("no data")
    if node == 3 and step == 3:
        time.sleep(8 * PATIENCE)
    if node == 2 and step == 3:
        time.sleep(16 * PATIENCE)

quorum = int(os.environ["QUORUM"])
begun = time.monotonic()
ours, result, _ = run(quorum, 3, fraction_evaluate=0.0, timeout=4 * PATIENCE, min_train_nodes=3, min_available_nodes=3)
expected = initial()
for step, nodes in ((1, [1, 3]), (2, [2, 3]), (3, [1])):
    expected = mean(expected, nodes, step)
assert apart(ours, expected) < 1e-6, apart(ours, expected)
assert time.monotonic() - begun < 16 * PATIENCE, "the last round waited for clients beyond its time limit"
print("three rounds", flush=True)
"""

LATE = PROGRAM + """
def accident(node, step):
    if node == 3:
        time.sleep(2)

begun = time.monotonic()
ours, result, _ = run(2, 1, fraction_evaluate=0.0, timeout=30 * PATIENCE, min_train_nodes=3, min_available_nodes=3)
expected = mean(initial(), [1, 2], 1)
assert apart(ours, expected) < 1e-6, apart(ours, expected)
assert 2 < time.monotonic() - begun < 25 * PATIENCE, "the late client waited for another round"
assert result.train_metrics_clientapp[1]["node"] == (10 * 1 + 3 * 2) / 13
"""

NO_CLIENT = PROGRAM + """
def accident(node, step):
    if step == 2:
        raise ValueError("no data")

ours, result, _ = run(3, 3, fraction_evaluate=0.0)
expected = mean(mean(initial(), EXAMPLES, 1), EXAMPLES, 3)
assert apart(ours, expected) < 1e-6, apart(ours, expected)
assert sorted(result.train_metrics_clientapp) == [1, 3]
"""

MISUSE = PROGRAM + """
FedAvg = gradrail.flower.FedAvg
refused(gradrail.InvalidArgument, "quorum 0", FedAvg, SERVER, 0)
refused(gradrail.InvalidArgument, "must be one of sgd", FedAvg, SERVER, 2, optimizer="mean")
strategy = FedAvg(SERVER, 2)
refused(gradrail.InvalidArgument, "'n' has the type int64", strategy.start, None, arrays_of({"n": np.zeros(3, np.int64)}))
refused(gradrail.InvalidArgument, "is empty", strategy.start, None, ArrayRecord())
plain = Message(RecordDict({"arrays": arrays_of(initial()), "config": ConfigRecord()}), 1, "train")
context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
refused(gradrail.FailedPrecondition, "must be gradrail.flower.FedAvg", app, plain, context)

wrong = []
def train(message, context):
    values = {name: array.numpy() for name, array in message.content["arrays"].items()}
    arrays, metrics = arrays_of(values), {"num-examples": 5}
    step = message.content["config"]["server-round"]
    if step == 1:
        metrics = {"examples": 5}
    elif step == 2:
        metrics = {"num-examples": 0}
    elif step == 3:
        arrays = arrays_of({**values, "b": np.zeros(8, np.float32)})
    elif step == 4:
        del values["w"]
        arrays = arrays_of(values)
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)}), reply_to=message)

class Watched(Grid):
    def serve(self, message, result):
        try:
            super().serve(message, result)
        except gradrail.InvalidArgument as error:
            print(f"refused: {error}", flush=True)
            os._exit(0)

app = ClientApp()
app.train(mods=[gradrail.flower.transport(**LOCAL)])(train)
FedAvg(SERVER, 1, local=LOCAL, fraction_evaluate=0.0).start(Watched(app, 1), arrays_of(initial()), num_rounds=5, timeout=60)
"""


class Federation(package.PackageTest):
    MODULES = ("numpy", "flwr.serverapp.strategy")

    def good_federation(self, program, **variables):
        server, environment = self.start_server(1)
        task = self.start_program(program, {**environment(0), **variables})
        self.assert_ends(task, cluster.GOOD)
        return server, task

    def test_rounds_equal_a_weighted_average(self):
        server, _ = self.good_federation(AVERAGE)
        self.assert_ends(server, 0)

    def test_the_servers_make_fedadam_and_fedavgm(self):
        for kind in ("adam", "momentum"):
            with self.subTest(kind=kind):
                self.good_federation(OPTIMIZERS, KIND=kind)

    def test_a_killed_client_does_not_stall_its_round(self):
        _, task = self.good_federation(KILLED + """
assert apart(ours, expected) < 1e-6, apart(ours, expected)
assert result.train_metrics_clientapp[2]["node"] == (10 * 1 + 25 * 3) / 35
print("went on")
""", QUORUM="3")
        self.assert_says(task, "went on")

    def test_a_round_goes_on_with_the_clients_that_remain(self):
        _, task = self.good_federation(SPARE, QUORUM="2")
        self.assert_says(task, "three rounds")

    def test_a_late_difference_is_dropped(self):
        self.good_federation(LATE)

    def test_a_round_without_clients_changes_nothing(self):
        self.good_federation(NO_CLIENT)

    def test_wrong_use_is_refused(self):
        _, task = self.good_federation(MISUSE)
        self.assert_says(task, "refused: metric 'num-examples' of the reply is None", "refused: metric .* is 0",
                         r"refused: array 'b' .* has the shape \(8,\), and that of the servers \(7,\)",
                         r"refused: array 'w' .* has the shape None")


if __name__ == "__main__":
    unittest.main()
