"""gradrail for Flower: the arrays of a federated round travel through the parameter servers, which form their mean.

    strategy = gradrail.flower.FedAvg("server:2222", quorum=10)             # ServerApp
    result = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=5)

    app = ClientApp()
    @app.train(mods=[gradrail.flower.transport()])                          # ClientApp: the function stays as it is

Messages of Flower select the clients and carry configurations and metrics.
"""
import json
import math
import threading
import time
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple, Union

import numpy as np

from . import _arguments, client, errors

try:
    import flwr.serverapp.strategy
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
except ImportError as error:
    raise ImportError(f"gradrail.flower needs Flower with the message API ({error}): pip install 'flwr>=1.42'") from error

__all__ = ["FedAvg", "transport"]

_RECORD = "gradrail"  # the key of our record in the messages
# Two fragments make the servers drop a late difference instead of keeping its client for the next round. The second one
# is never exchanged.
_MODEL, _UNUSED = "model", ".unused"
_INDEXES = 1023  # client indexes, from 1; index 0 is the strategy
_POLL_S = 0.1  # interval between two looks for replies
_PATIENCE_S = 1.0  # time for one replacement to complete a step after the time limit, before the next one joins
_NO_WEIGHT = 2.0**-100  # vanishes beside the number of examples of a client
_OPTIMIZERS = ("sgd", "momentum", "nesterov", "adam", "torch_adam")
_SHARED = ("momentum", "beta1", "beta2", "epsilon", "push")  # constants of join() that are equal for all workers

_Described = Dict[str, Tuple[Tuple[int, ...], str]]  # shape and dtype of each array


def _describe(arrays: ArrayRecord) -> _Described:
    described = {}
    for name, array in arrays.items():
        if np.dtype(array.dtype).kind != "f":
            raise errors.InvalidArgument(f"array {name!r} has the type {array.dtype}: the servers average float arrays only; leave "
                                         "it out of the ArrayRecord")
        described[name] = (tuple(array.shape), str(array.dtype))
    if not described:
        raise errors.InvalidArgument("arrays: the ArrayRecord is empty, so that there is nothing to average")
    return described


def _join(place: Mapping[str, Any], task_index: int, described: _Described, local: Mapping[str, Any]) -> client.Client:
    tensors: Dict[str, Any] = {name: shape or (1,) for name, (shape, _) in described.items()}
    return client.join({**tensors, _UNUSED: (1,)}, fragments={_MODEL: list(tensors), _UNUSED: [_UNUSED]},
                       task_index=task_index, **place, **local)


def _take(joined: client.Client, described: _Described) -> ArrayRecord:
    return ArrayRecord({name: Array(joined.parameters[name].reshape(shape).astype(dtype))
                        for name, (shape, dtype) in described.items()})


class FedAvg(flwr.serverapp.strategy.FedAvg):
    """Federated averaging through parameter servers. Their optimizer makes it FedAvg, FedAvgM or FedAdam.

    Parameters
    ----------
    ps_hosts : "host:port,…" or a list
        The parameter servers, with addresses that all clients can reach. A start() needs servers that have just started.
    quorum : int
        Differences that complete a round. Flower may sample more clients. Later differences are dropped then.
    optimizer, learning_rate, momentum, beta1, beta2, epsilon, push
        As for gradrail.join(). "sgd" with the rate 1 is FedAvg, "momentum" is FedAvgM, and "adam" is FedAdam.
    local : mapping
        Arguments of gradrail.join() for the process of the strategy, such as secret_file or transports.
    options
        The arguments of flwr.serverapp.strategy.FedAvg. min_train_nodes and min_available_nodes are `quorum` by default.
    """

    def __init__(self, ps_hosts: Union[str, Iterable[str]], quorum: int, *, optimizer: str = "sgd", learning_rate: float = 1.0,
                 momentum: Optional[float] = None, beta1: Optional[float] = None, beta2: Optional[float] = None,
                 epsilon: Optional[float] = None, push: Optional[str] = None,
                 local: Optional[Mapping[str, Any]] = None, **options: Any):
        quorum = _arguments.whole("quorum", quorum, _INDEXES - 1, 1)
        if optimizer not in _OPTIMIZERS:
            raise errors.InvalidArgument(f"optimizer {optimizer!r}: must be one of {', '.join(_OPTIMIZERS)}")
        super().__init__(**{"min_train_nodes": quorum, "min_available_nodes": quorum, **options})
        self.quorum = quorum
        self._local = dict(local or {})
        given = zip(_SHARED, (momentum, beta1, beta2, epsilon, push))
        self._place = {
            "ps_hosts": ps_hosts if isinstance(ps_hosts, str) else ",".join(ps_hosts),
            # Names only. A step needs `quorum` gradients also while fewer clients have joined.
            "worker_hosts": ",".join(f"localhost:{index + 1}" for index in range(quorum)),
            "mode": f"quorum:{quorum}", "optimizer": optimizer, "learning_rate": learning_rate,
            **{name: value for name, value in given if value is not None}
        }
        self._used_indexes = 0
        self._step = 0
        self._described: _Described = {}
        self._gate: Optional[client.Client] = None

    def start(self, grid: Any, initial_arrays: ArrayRecord, *arguments: Any, **named: Any) -> Any:
        """Runs the rounds, like Strategy.start() of Flower.

        After `timeout` a round continues without the clients that have not answered."""
        self._described = _describe(initial_arrays)
        # The strategy is worker 0 and sends no gradient. Therefore fewer clients than `quorum` never complete a step.
        with _join(self._place, 0, self._described, self._local) as self._gate:
            for name, (shape, _) in self._described.items():
                self._gate.parameters[name][...] = initial_arrays[name].numpy().reshape(shape or (1,))
            self._gate.start()
            return super().start(_Grid(grid, self), self._pull(), *arguments, **named)

    def _pull(self) -> ArrayRecord:
        self._gate.pull()
        self._step = self._gate.fragment_step(_MODEL)
        return _take(self._gate, self._described)

    def _next_index(self) -> int:
        self._used_indexes += 1
        return 1 + (self._used_indexes - 1) % _INDEXES

    def _with_place(self, messages: Iterable[Message]) -> List[Message]:
        """Returns the messages with the place of each client at the servers."""
        found = []
        for message in messages:
            record = ConfigRecord({"place": json.dumps(self._place), "arrays": json.dumps(self._described), "step": self._step,
                                   "task-index": self._next_index(), "arrays-key": self.arrayrecord_key,
                                   "weight-key": self.weighted_by_key})
            found.append(Message(RecordDict({**message.content, _RECORD: record}), message.metadata.dst_node_id,
                                 message.metadata.message_type))
        return found

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any) -> Iterable[Message]:
        """Returns the messages of Strategy.configure_train() of Flower, without arrays."""
        return self._with_place(super().configure_train(server_round, ArrayRecord(), config, grid))

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord,
                           grid: Any) -> Iterable[Message]:
        """Returns the messages of Strategy.configure_evaluate() of Flower, without arrays."""
        return self._with_place(super().configure_evaluate(server_round, ArrayRecord(), config, grid))

    def aggregate_train(self, server_round: int,
                        replies: Iterable[Message]) -> Tuple[Optional[ArrayRecord], Optional[MetricRecord]]:
        """Returns the arrays of the servers, and the metrics of the clients with a difference in the mean."""
        counted, _ = self._check_and_log_replies([reply for reply in replies if not _is_dropped(reply)], is_train=False)
        metrics = self.train_metrics_aggr_fn([reply.content for reply in counted], self.weighted_by_key) if counted else None
        return self._pull(), metrics


def _is_dropped(reply: Message) -> bool:
    return not reply.has_error() and bool(reply.content[_RECORD]["dropped"])


class _Grid:
    """The grid of a strategy. It sees failed clients during a round, so that the others need not wait for them."""

    def __init__(self, grid: Any, strategy: FedAvg):
        self._grid = grid
        self._strategy = strategy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: Optional[float] = None) -> List[Message]:
        messages = list(messages)
        if not messages or messages[0].metadata.message_type != MessageType.TRAIN:
            return list(self._grid.send_and_receive(messages, timeout=timeout))
        spare = len(messages) - self._strategy.quorum
        waiting = set(self._grid.push_messages(messages))
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        replies: List[Message] = []
        replacements: List[_Replacement] = []
        while True:
            arrived = list(self._grid.pull_messages(waiting))
            waiting.difference_update(message.metadata.reply_to_message_id for message in arrived)
            replies += arrived
            if not waiting or time.monotonic() > deadline:
                break
            failed = sum(reply.has_error() for reply in replies)
            while len(replacements) < failed - spare:
                replacements.append(_Replacement(self._strategy))
            time.sleep(_POLL_S)
        # A client that has answered without an error has completed the step.
        if (waiting or replacements) and all(reply.has_error() for reply in replies):
            while len(replacements) < self._strategy.quorum and not any(one.ends_within(0) for one in replacements):
                replacements.append(_Replacement(self._strategy))
                replacements[-1].ends_within(_PATIENCE_S)
        for one in replacements:
            one.finish()
        return replies


class _Replacement:
    """Takes the place of a failed client in the quorum of a round. Its difference is 0, and its weight vanishes."""

    def __init__(self, strategy: FedAvg):
        self._joined = (strategy._place, strategy._next_index(), strategy._described, strategy._local)
        self._step = strategy._step
        self._error: Optional[BaseException] = None
        self._thread = threading.Thread(target=self._run, name="gradrail-replacement", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with _join(*self._joined) as joined:
                joined.start()
                if joined.fragment_step(_MODEL) == self._step:
                    joined.set_weight(_NO_WEIGHT)
                    joined.step(_MODEL)
        except BaseException as error:  # finish() raises it in the thread of the strategy
            self._error = error

    def ends_within(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def finish(self) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._error


def transport(**local: Any) -> Any:
    """Returns a mod of Flower for the train and evaluate functions of a ClientApp.

    The function finds the arrays of the servers in its message. The mod sends the arrays of its reply to the servers, and
    waits until the round is complete. `local` has arguments of gradrail.join() for this process, such as secret_file.
    """

    def gradrail_transport(message: Message, context: Any, call_next: Any) -> Message:
        if message.metadata.message_type not in (MessageType.TRAIN, MessageType.EVALUATE):
            return call_next(message, context)
        record = message.content.get(_RECORD)
        if record is None:
            raise errors.FailedPrecondition("the message names no parameter servers: the strategy of the ServerApp must be "
                                            "gradrail.flower.FedAvg")
        described = {name: (tuple(shape), dtype) for name, (shape, dtype) in json.loads(record["arrays"]).items()}
        with _join(json.loads(record["place"]), record["task-index"], described, local) as joined:
            joined.start()
            message.content[record["arrays-key"]] = _take(joined, described)
            if message.metadata.message_type == MessageType.EVALUATE:
                joined.leave()
                return call_next(message, context)
            if joined.fragment_step(_MODEL) != record["step"]:
                raise errors.FailedPrecondition("the round was complete before this client had joined: sample fewer clients "
                                                "beyond the quorum, or raise the quorum")
            reply = call_next(message, context)
            if not reply.has_error():
                _send(joined, reply.content, described, record["weight-key"])
            return reply

    return gradrail_transport


def _send(joined: client.Client, content: RecordDict, described: _Described, weight_key: str) -> None:
    """Sends the difference between the common arrays and those of the reply, and takes the arrays out of the reply."""
    if len(content.array_records) != 1 or len(content.metric_records) != 1:
        raise errors.InvalidArgument("the reply of the train function: must have one ArrayRecord and one MetricRecord")
    (key, arrays), (metrics, ) = next(iter(content.array_records.items())), content.metric_records.values()
    weight = metrics.get(weight_key)
    if not isinstance(weight, (int, float)) or not 0 < weight < math.inf:
        raise errors.InvalidArgument(f"metric {weight_key!r} of the reply is {weight!r}: must be the number of examples, more than 0")
    given = {name: tuple(array.shape) for name, array in arrays.items()}
    expected = {name: shape for name, (shape, _) in described.items()}
    if given != expected:
        wrong = sorted(name for name in {**given, **expected} if given.get(name) != expected.get(name))
        raise errors.InvalidArgument(f"array {wrong[0]!r} of the reply has the shape {given.get(wrong[0])}, and that of the servers "
                                     f"{expected.get(wrong[0])}: return the arrays that the message had")
    for name, array in arrays.items():
        common = joined.parameters[name]
        np.subtract(common, array.numpy().reshape(common.shape), out=joined.gradients[name], casting="same_kind")
    joined.set_weight(weight)
    joined.step(_MODEL)
    content[key] = ArrayRecord()
    content[_RECORD] = ConfigRecord({"dropped": joined.stats()["dropped"] > 0})
