"""Programs with a federation of Flower: its strategies and ClientApps are those of the package flwr, its network is a pipe."""

# Each message has a client process, as with the SuperNodes of Flower. It can be killed, and it ends after its reply.
PROGRAM = """
import atexit, multiprocessing, pickle
import flwr.serverapp
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity
import gradrail.flower
TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # as Flower sets it in the process of a ServerApp
SERVER = os.environ["GRADRAIL_PS_HOSTS"]
del os.environ["GRADRAIL_PS_HOSTS"]  # the clients take it from their messages
LOCAL = {"join_timeout": 60.0}

class Grid(flwr.serverapp.Grid):
    run = None
    def set_run(self, run): pass
    def create_message(self, *_, **__): raise NotImplementedError

    def __init__(self, app, nodes):
        self.app, self.sent, self.bytes, self.fork = app, {}, 0, multiprocessing.get_context("fork")
        # Forked before this process has joined: the threads of a client do not exist in a child.
        self.nodes = {node: self.start(self.serve_node, node) for node in range(1, nodes + 1)}

    def start(self, function, *arguments):
        ours, theirs = self.fork.Pipe()
        process = self.fork.Process(target=function, args=(*arguments, theirs))
        process.start()
        theirs.close()
        atexit.register(process.kill)
        return ours

    def serve_node(self, node, messages):
        while True:
            try:
                message, reply_to = messages.recv()
            except EOFError:
                os._exit(0)
            result = self.start(self.serve, message)
            try:
                messages.send((reply_to, result.recv_bytes()))
            except EOFError:
                messages.send((reply_to, None))

    def serve(self, message, result):
        context = Context(run_id=1, node_id=message.metadata.dst_node_id, node_config={}, state=RecordDict(), run_config={})
        result.send_bytes(pickle.dumps(self.app(message, context).content))
        os._exit(0)

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        ids = []
        for message in messages:
            ids.append(str(len(self.sent)))
            message.metadata.__dict__["_message_id"] = ids[-1]
            self.bytes += len(pickle.dumps(message.content))
            self.sent[ids[-1]] = message
            self.nodes[message.metadata.dst_node_id].send((message, ids[-1]))
        return ids

    def pull_messages(self, ids):
        replies = []
        for node, pipe in self.nodes.items():
            while pipe.poll():
                reply_to, data = pipe.recv()
                self.bytes += len(data or b"")
                what = Error(code=0, reason="the process ended") if data is None else pickle.loads(data)
                if reply_to in ids:
                    replies.append(Message(what, reply_to=self.sent[reply_to]))
        return replies

    def send_and_receive(self, messages, *, timeout=None):
        waiting, replies, end = set(self.push_messages(messages)), [], time.monotonic() + (timeout or 60)
        while waiting and time.monotonic() < end:
            replies += self.pull_messages(waiting)
            waiting -= {reply.metadata.reply_to_message_id for reply in replies}
            time.sleep(0.02)
        return replies

app = ClientApp()
SHAPES = {"w": (3, 40), "b": (7,), "scale": ()}
EXAMPLES = {1: 10, 2: 3, 3: 25}

def arrays_of(values):
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in values.items()})

def initial():
    random = np.random.default_rng(5)
    return {name: np.asarray(random.standard_normal(shape), np.float32) for name, shape in SHAPES.items()}

def trained(values, node, step):
    random = np.random.default_rng([node, step])
    return {name: np.asarray(0.9 * value + 0.1 * random.standard_normal(value.shape), np.float32)
            for name, value in values.items()}

def accident(node, step):
    pass

@app.train(mods=[gradrail.flower.transport(**LOCAL)])
def train(message, context):
    node, step = context.node_id, message.content["config"]["server-round"]
    values = {name: array.numpy() for name, array in message.content["arrays"].items()}
    accident(node, step)
    content = RecordDict({"arrays": arrays_of(trained(values, node, step)),
                          "metrics": MetricRecord({"num-examples": EXAMPLES[node], "node": float(node)})})
    return Message(content, reply_to=message)

@app.evaluate(mods=[gradrail.flower.transport(**LOCAL)])
def evaluate(message, context):
    total = sum(float(array.numpy().sum()) for array in message.content["arrays"].values())
    return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1, "total": total})}), reply_to=message)

def mean(values, nodes, step):
    parts = {node: trained(values, node, step) for node in nodes}
    weight = sum(EXAMPLES[node] for node in nodes)
    return {name: sum(EXAMPLES[node] * parts[node][name].astype(np.float64) for node in nodes) / weight for name in values}

def run(quorum, rounds, nodes=3, timeout=60.0, **options):
    strategy = gradrail.flower.FedAvg(SERVER, quorum, local=LOCAL, **options)
    grid = Grid(app, nodes)
    result = strategy.start(grid, arrays_of(initial()), num_rounds=rounds, timeout=timeout)
    return {name: array.numpy() for name, array in result.arrays.items()}, result, grid

def apart(ours, expected):
    for name, shape in SHAPES.items():
        assert ours[name].shape == shape and ours[name].dtype == np.float32, (name, ours[name].shape)
    return max(float(np.abs(ours[name] - expected[name]).max()) for name in SHAPES)
"""
