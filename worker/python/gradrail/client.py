"""A worker's client: parameters and gradients as NumPy arrays, exchanged with the parameter servers."""
import atexit
import contextlib
import ctypes
import json
import os
import threading
import time
import weakref
from typing import Any, Callable, Dict, Iterable, Iterator, Mapping, Optional, Tuple, Union

import numpy as np

from . import _arguments, errors
from ._library import INTERRUPTED, LIBRARY, Options, last_error
from ._tensors import Tensors, fixed

_process = 0  # another number in each forked child
_clients: "weakref.WeakSet[Client]" = weakref.WeakSet()
_in_library: list = []  # the number of the process for each join() and gradrail_free() that is under way
_ending_thread: Optional[int] = None  # the thread that ends the interpreter, after all threads but daemon threads
_END_WITHIN_S = 7.0  # a request that a server does not answer ends within six seconds after its interruption


def _count_process() -> None:
    global _process
    _process += 1


os.register_at_fork(after_in_child=_count_process)


class _Handle:
    """The client of the C library. Each array of its memory refers to it, so that the memory exists as long as they do."""

    def __init__(self, pointer: int, interrupted: Any):
        self.pointer = ctypes.c_void_p(pointer)
        self.interrupted = interrupted  # the library calls it until gradrail_free(), which may block
        self.process = _process

    def __del__(self):
        # The memory of a forked child is a copy; its threads do not exist.
        if self.process == _process:
            _in_library.append(_process)
            try:
                LIBRARY.gradrail_free(self.pointer)
            finally:
                _in_library.pop()


def _must_end() -> bool:
    """Whether this is a daemon thread at the end of the program."""
    return _ending_thread is not None and _ending_thread != threading.get_ident()


def _end_daemon_thread() -> None:
    """threading ignores this exception, and the `finally` blocks of the thread run."""
    if _must_end():
        raise SystemExit("the program has ended, and this daemon thread ends with it")


def _poll(pending: list) -> Iterator[int]:
    """Yields whether the call must end: a signal handler has raised, or the program ends without this thread.

    The handlers of Python run when this is resumed in the main thread. An exception of a handler is raised at the yield,
    where it is caught; in a function it could be raised before a `try`.
    """
    while not pending:
        try:
            while True:
                yield _must_end()
        except GeneratorExit:
            return
        except BaseException as error:  # includes KeyboardInterrupt and SystemExit
            pending.append(error)
    while True:
        yield 1


class Client:
    """One worker of a run. join() makes it.

    A step: read `parameters`, write `gradients`, step(). exchange() and wait() are its halves; between them the program
    must not access the arrays. A client belongs to one thread at a time; a call from a second thread raises
    FailedPrecondition. After fork() the child cannot use it. Ctrl-C ends each wait within a second, and a request that a
    server does not answer within six; later calls that wait raise Cancelled.

    Attributes
    ----------
    parameters : Tensors, float32
        The newest parameters that start(), step(), wait() or pull() has fetched. Before start() the program writes the
        initial values here. The arrays stay valid after leave().
    gradients : Tensors, float32
        The gradients that the next step() or exchange() sends. At first they are zero, and no call changes them.
    """

    def __init__(self, pointer: int, shapes: Dict[str, Tuple[int, ...]], interrupted: Any, pending: list,
                 place: "Tuple[str, str]", fragments: Dict[str, int]):
        self._place = place
        self._fragments = {name: ctypes.c_size_t(index) for name, index in fragments.items()}
        self._handle = _Handle(pointer, interrupted)
        self._pending = pending
        self._idle: list = [None]  # a call takes the item: pop() of one thread succeeds, and costs less than a lock
        self._indexes = {name: ctypes.c_size_t(index) for index, name in enumerate(shapes)}
        self._parameters = self._tensors(LIBRARY.gradrail_parameters, shapes)
        self._gradients = self._tensors(LIBRARY.gradrail_gradients, shapes)
        self._left = self._lost = False  # lost: the run has failed for this worker, and the servers do not count it
        _clients.add(self)

    parameters = fixed("parameters")
    gradients = fixed("gradients")

    def _leave_quietly(self) -> None:
        # The arrays keep the memory, but they do not keep this worker in the run.
        if not getattr(self, "_left", True) and self._handle.process == _process:
            with contextlib.suppress(errors.Error):
                self.leave()

    __del__ = _leave_quietly

    def _close(self) -> list:
        """Refuses further calls. Returns a list that has an item when no call is under way."""
        idle, self._idle = self._idle, []
        return idle

    def _leave_closed(self) -> None:
        if not self._left:
            self._left = True
            LIBRARY.gradrail_leave(self._handle.pointer)
        self._idle.append(None)  # the library refuses further calls and blocks in none; a second leave() has no effect

    def _tensors(self, find: Any, shapes: Dict[str, Tuple[int, ...]]) -> Tensors:
        arrays = {}
        for index, (name, shape) in enumerate(shapes.items()):
            elements = ctypes.c_size_t()
            address = find(self._handle.pointer, index, ctypes.byref(elements))
            memory = (ctypes.c_float * elements.value).from_address(address)
            memory.handle = self._handle
            arrays[name] = np.frombuffer(memory, dtype=np.float32).reshape(shape)
        return Tensors(arrays)

    def _call(self, function: Any, *arguments: Any) -> None:
        """Part of each step: local names and few calls keep it short."""
        handle, idle, pending = self._handle, self._idle, self._pending
        if handle.process != _process:
            raise errors.FailedPrecondition("this process was forked from the one that joined: join in the child, or "
                                            "start workers with `gradrail run`")
        try:
            idle.pop()
        except IndexError:
            _end_daemon_thread()
            raise errors.FailedPrecondition(
                "another thread uses this client: a client belongs to one thread at a time") from None
        already = len(pending)
        try:
            code = function(handle.pointer, *arguments)
            text = last_error() if code else ""
        finally:
            idle.append(None)
        if pending and not already:
            _raise_pending(pending)
        if code:
            _end_daemon_thread()
            error = errors.error_of(code, text)
            self._lost = self._lost or isinstance(error, (errors.Unavailable, errors.Aborted, errors.DataLoss))
            raise error

    def _is_member(self) -> bool:
        return not self._left and not self._lost and self._handle.process == _process

    def _end(self, function: Any, *arguments: Any) -> None:
        """Also a call that fails ends the client, but not one that was refused before it reached the library."""

        def end(pointer: Any, *rest: Any) -> int:
            self._left = True
            return function(pointer, *rest)

        self._call(end, *arguments)

    def _number(self, function: Any) -> int:
        """Returns the result of a function that reads what a step changes."""
        found = []

        def read(pointer: Any) -> int:
            found.append(function(pointer))
            return 0

        self._call(read)
        return found[0]

    def start(self) -> None:
        """Begins the training. The chief offers its parameters as initial values; other workers receive them.

        Called once, before the first step. Raises Unavailable, Aborted, FailedPrecondition.
        """
        self._call(LIBRARY.gradrail_start)

    def ready(self, *names: str) -> None:
        """Declares that these gradients are complete, and that their parameters are not read again before the step ends.

        Optional: their buckets leave at once, while the program computes the rest. Once per step and tensor.
        """
        try:
            indexes = [self._indexes[name] for name in names]
        except KeyError as error:
            raise errors.InvalidArgument(
                f"tensor {error.args[0]!r}: the tensors are {', '.join(self._indexes)}") from None
        if len(indexes) == 1:
            self._call(LIBRARY.gradrail_ready, indexes[0])
        else:
            self._call(LIBRARY.gradrail_ready_many, (ctypes.c_size_t * len(indexes))(*indexes), len(indexes))

    def _fragment(self, name: str) -> ctypes.c_size_t:
        if self._left:  # fragment_step() and fragment_position() of C have no status
            raise errors.FailedPrecondition(f"fragment {name!r} after leave(): join again for a new client")
        if name not in self._fragments:
            raise errors.InvalidArgument(f"fragment {name!r}: the fragments are {', '.join(map(repr, self._fragments))}")
        return self._fragments[name]

    def exchange(self, fragment: Optional[str] = None) -> None:
        """Sends the gradients that have not left yet, or those of one fragment. Returns at once; errors surface in wait()."""
        if fragment is None:
            self._call(LIBRARY.gradrail_exchange)
        else:
            self._call(LIBRARY.gradrail_exchange_fragment, self._fragment(fragment))

    def wait(self, fragment: Optional[str] = None) -> None:
        """Blocks until all fresh parameters have arrived, or those of one fragment.

        Raises every error of the exchange and of the run.
        """
        if fragment is None:
            self._call(LIBRARY.gradrail_wait)
        else:
            self._call(LIBRARY.gradrail_wait_fragment, self._fragment(fragment))

    def step(self, fragment: Optional[str] = None) -> None:
        """exchange() and wait() in one call. Raises the errors of both."""
        if fragment is None:
            self._call(LIBRARY.gradrail_step)
        else:
            self.exchange(fragment)
            self.wait(fragment)

    def fragment_step(self, fragment: str) -> int:
        """Updates applied to the parameters of this fragment that this worker holds."""
        index = self._fragment(fragment)
        return self._number(lambda pointer: LIBRARY.gradrail_fragment_step(pointer, index))

    def fragment_position(self, fragment: str) -> int:
        """Steps of this fragment that this worker has completed, counted from where `position` counts."""
        index = self._fragment(fragment)
        return self._number(lambda pointer: LIBRARY.gradrail_fragment_position(pointer, index))

    def set_weight(self, weight: float) -> None:
        """Sets the weight of the next gradients in the mean of a step, such as the number of samples. At first 1.

        It has no effect in async and ssp, which form no mean. Raises InvalidArgument, FailedPrecondition.
        """
        self._call(LIBRARY.gradrail_set_weight, ctypes.c_float(_arguments.number("weight", weight)))

    def set_learning_rate(self, rate: float) -> None:
        """Sets the learning rate of the next steps, 0 or more, between two steps.

        async, ssp: for the gradients of this worker. Otherwise all workers set the same rate for a step: sync refuses a
        worker whose rate differs by more than 1e-6 of it, first one that was in no step before. In backup and quorum the
        rate of the lowest worker counts. Raises InvalidArgument, FailedPrecondition.
        """
        self._call(LIBRARY.gradrail_set_learning_rate, ctypes.c_float(_arguments.not_negative("rate", rate)))

    def pull(self) -> None:
        """Fetches the current parameters without sending gradients."""
        self._call(LIBRARY.gradrail_pull)

    def barrier(self, name: str) -> None:
        """Blocks until every worker has called it with this name. Workers that left or were lost are not waited for.

        The n-th call waits for the n-th calls of the others. A worker that was started again counts from 1: choose another
        name for each phase of a run, such as "epoch 5".
        """
        self._call(LIBRARY.gradrail_barrier, _arguments.text("name", name))

    def save_checkpoint(self) -> None:
        """Saves parameters, optimizer state and step at every parameter server. For the chief, between two steps."""
        self._call(LIBRARY.gradrail_save_checkpoint)

    def begin_checkpoint(self) -> None:
        """Begins a save_checkpoint() beside further steps: returns when the servers have copied their state."""
        self._call(LIBRARY.gradrail_begin_checkpoint)

    def finish_checkpoint(self) -> None:
        """Blocks until the files of begin_checkpoint() are written."""
        self._call(LIBRARY.gradrail_finish_checkpoint)

    def finish_steps(self) -> None:
        """Declares that this worker sends no further gradients, so that the others do not wait for them."""
        self._call(LIBRARY.gradrail_finish_steps)

    def leave(self) -> None:
        """Ends this worker's part of the run; the others continue. A second call has no effect."""
        self._end(LIBRARY.gradrail_leave)

    def give_up(self, reason: str) -> None:
        """Ends this worker's part of the run with an error: the servers count the worker as lost at once."""
        self._end(LIBRARY.gradrail_give_up, _arguments.text("reason", reason))

    def stats(self) -> Dict[str, Any]:
        """Returns the statistics up to now: counters, bytes, exchange times in seconds, the path to each shard."""
        text = []

        def read(pointer: Any) -> int:
            text.append(LIBRARY.gradrail_stats_json(pointer))
            return 0 if text[0] is not None else errors.ResourceExhausted.code

        self._call(read)
        return json.loads(text[0])

    @property
    def task_index(self) -> int:
        """The index of this worker."""
        return LIBRARY.gradrail_task_index(self._handle.pointer)

    @property
    def is_chief(self) -> bool:
        """Whether this worker is the chief now: the lowest worker that is live. Any thread may ask."""
        return bool(LIBRARY.gradrail_is_chief(self._handle.pointer))

    @property
    def global_step(self) -> int:
        """Updates applied to the parameters that this worker holds."""
        return self._number(LIBRARY.gradrail_global_step)

    @property
    def position(self) -> int:
        """Steps that this worker has completed; in all modes but async the common steps of all workers."""
        return self._number(LIBRARY.gradrail_position)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._left or self._handle.process != _process:
            return
        if kind is None:
            self.leave()
            return
        # The other workers receive the failure immediately; the error of this worker is the one to show.
        why = f"{kind.__name__}: {error}" if str(error) else kind.__name__  # an interrupt has no text
        why = why[:1000].replace("\0", " ").encode(errors="replace").decode()
        try:
            self.give_up(why)
        except errors.Error:
            pass


def _raise_pending(pending: list) -> None:
    """Raises the exception of a signal handler, after the call during which the handler ran."""
    raise pending[0].with_traceback(None)


def _place(options: Options) -> "Tuple[str, str]":
    """Returns the parameter servers and the task index of a worker, which two clients of a process do not share."""
    if options.ps_hosts is None:
        return os.environ.get("GRADRAIL_PS_HOSTS", ""), os.environ.get("GRADRAIL_TASK_INDEX", "0")
    return options.ps_hosts.decode(errors="surrogateescape"), str(options.task_index)


def join(tensors: Mapping[str, Any], *, fragments: Optional[Mapping[str, Iterable[str]]] = None, optimizer: str = "sgd", 
         learning_rate: Optional[float] = None, momentum: Optional[float] = None, beta1: Optional[float] = None, beta2: Optional[float] = None,
         epsilon: Optional[float] = None, weight_decay: float = 0.0, momentum_every: int = 0, mode: str = "async", ps_hosts: Union[None, str, Iterable[str]] = None,
         worker_hosts: Union[None, str, Iterable[str]] = None, task_index: Optional[int] = None,
         backup_hosts: Union[None, str, Iterable[str]] = None, bucket_bytes: int = 0, push: str = "fp32", return_format: str = "fp32",
         transports: str = "auto", fallback: bool = True, checksums: bool = False, encrypt_data: bool = False,
         bind_host: Optional[str] = None, rails: bool = True, streams: int = 0, join_timeout: float = 0.0, path_timeout: float = 0.0, rejoin_timeout: float = 0.0,
         secret_file: Optional[str] = None, trusted_ca_file: Optional[str] = None, cert_file: Optional[str] = None,
         key_file: Optional[str] = None, insecure: bool = False) -> Client:
    """Joins a run as a worker and returns its client. It waits until all parameter servers have started.

    Parameters
    ----------
    tensors : mapping of names to shapes
        The parameters of the model, float32. A shape is a number of elements or a sequence of them. An array stands for its
        shape, and its values become the initial ones.
    fragments : mapping of names to names of tensors
        Sets of tensors with steps of their own. exchange(), wait() and step() take the name of one; fragments may be under
        way at the same time. Tensors that are in none form the fragment "".
    optimizer : "sgd", "momentum", "nesterov", "adam", "torch_adam", "adamw", "mean" or "delayed_nesterov"
        The optimizer of the parameter servers, with `learning_rate` (0.001), `momentum` (0.9), `beta1` (0.9),
        `beta2` (0.999) and `epsilon` (1e-8), each more than 0. "adam" is TensorFlow's Adam; "torch_adam" and "adamw" are
        PyTorch's Adam and AdamW. "mean" has no optimizer: the parameters become the mean gradient of a step.
    weight_decay : float
        "adamw" decays the parameters themselves, the others add weight_decay * parameter to the gradient.
    momentum_every : int
        "delayed_nesterov" updates its momentum in each so many updates; 0: the number of workers, in async and ssp.
    mode : "async", "sync", "ssp:K" or "quorum:K", with the options ",grace=SECONDS" or ",grace=auto", and ",late=drop"
    ps_hosts, worker_hosts : "host:port,…" or a list
        The cluster, with this worker's `task_index`. Default: the environment, where `gradrail run` has put it.
    backup_hosts : "host:port,…" or a list
        The backup of each parameter server.
    bucket_bytes : int
        Size of the pieces that travel, a multiple of 64 (push "int8", "int4": 256; "topk:P": 16384); 0: by the model.
    push : "fp32", "bf16", "int8", "int4" or "topk:P", the largest P percent; return_format : "fp32", "bf16" or "delta"
        The elements of a gradient on its way, and of parameters on their way back. What a push leaves
        out is added to the next one. "delta" gives the values of "bf16" and sends the changed ones only.
    transports : str
        In order of preference, such as "shm,tcp". fallback=False makes the first refusal an error. tcp uses all NICs that
        a server offers (not with rails=False or bind_host), and `streams` connections on each (0: by the speed of the link).
    join_timeout, path_timeout, rejoin_timeout : seconds
        For the servers to start (0: half an hour), for a connection that acknowledges nothing (0: 10 s), and for a lost
        server to return (0: no wait).
    secret_file, trusted_ca_file, cert_file, key_file, insecure
        Authentication, required between hosts. encrypt_data=True encrypts data between hosts.

    Raises
    ------
    InvalidArgument, DeadlineExceeded, AlreadyExists, FailedPrecondition, Unavailable
    """
    shapes, described = _arguments.schema(tensors)
    names_of_fragments, indexes = _arguments.fragments(fragments, shapes)
    options = Options(struct_bytes=ctypes.sizeof(Options))
    options.ps_hosts = _arguments.hosts("ps_hosts", ps_hosts)
    options.worker_hosts = _arguments.hosts("worker_hosts", worker_hosts)
    options.backup_hosts = _arguments.hosts("backup_hosts", backup_hosts)
    if ps_hosts is None and (worker_hosts is not None or task_index is not None):
        raise errors.InvalidArgument("worker_hosts and task_index need ps_hosts; without it, the whole cluster comes from "
                                     "the environment")
    options.task_index = _arguments.whole("task_index", 0 if task_index is None else task_index, (1 << 32) - 1)
    options.bucket_bytes = _arguments.whole("bucket_bytes", bucket_bytes, (1 << 32) - 1)
    options.mode = _arguments.choice("mode", mode)
    options.push = _arguments.choice("push", push)
    options.returns = _arguments.choice("return_format", return_format)
    options.optimizer = _arguments.choice("optimizer", optimizer)
    options.transports = _arguments.choice("transports", transports)
    for name, value in (("learning_rate", learning_rate), ("momentum", momentum), ("beta1", beta1), ("beta2", beta2),
                        ("epsilon", epsilon)):
        if value is not None:
            setattr(options, name, _arguments.constant(name, value))
    options.weight_decay = _arguments.number("weight_decay", weight_decay)
    options.momentum_every = _arguments.whole("momentum_every", momentum_every, (1 << 32) - 1)
    for name, value in (("join_timeout", join_timeout), ("path_timeout", path_timeout), ("rejoin_timeout", rejoin_timeout)):
        setattr(options, name + "_s", _arguments.not_negative(name, value))
    for name, value in (("bind_host", bind_host), ("secret_file", secret_file), ("trusted_ca_file", trusted_ca_file),
                        ("cert_file", cert_file), ("key_file", key_file)):
        setattr(options, name, None if value is None else _arguments.text(name, value))
    options.no_fallback = not _arguments.flag("fallback", fallback)
    options.no_rails = not _arguments.flag("rails", rails)
    options.streams = _arguments.whole("streams", streams, 64)
    for name, value in (("checksums", checksums), ("insecure", insecure), ("encrypt_data", encrypt_data)):
        setattr(options, name, _arguments.flag(name, value))
    place = _place(options)
    for other in list(_clients):
        if other._place == place and other._is_member():
            raise errors.AlreadyExists(f"this process is worker {place[1]} of these parameter servers already: call leave() "
                                       "of its Client or Exchange first; two models that train in turns, as in a GAN, have "
                                       "one gradrail.torch.MeanExchange of torch.nn.ModuleList([first, second])")
    pending: list = []
    poll = _poll(pending)
    next(poll)
    options.interrupted = INTERRUPTED(poll.send)
    pointer = ctypes.c_void_p()
    _in_library.append(_process)
    try:
        _end_daemon_thread()
        code = LIBRARY.gradrail_join_fragments(ctypes.byref(options), described, names_of_fragments, len(shapes),
                                               ctypes.byref(pointer))
        text = last_error() if code else ""
        client = None if code else Client(pointer.value, shapes, options.interrupted, pending, place, indexes)
    finally:
        _in_library.pop()
    if pending:
        _raise_pending(pending)
    if client is None:
        _end_daemon_thread()
        raise errors.error_of(code, text)
    try:
        for name, given in tensors.items():
            if _arguments.has_values(given):
                client.parameters[name] = given
    except BaseException as error:
        client.__exit__(type(error), error, None)
        raise
    return client


_arguments.fix_options(Client, join, remedy="join again; set_learning_rate(rate) sets the rate")


def _wait_until(condition: Callable[[], Any], deadline: float) -> bool:
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@atexit.register
def _leave_all() -> None:
    """A program that ends without leave() does not let the others wait.

    Calls of daemon threads must end before the interpreter. Afterwards Python ends each thread that calls it,
    here in `interrupted`. The thread then unwinds through frames that permit no exception, and the process aborts.
    """
    global _ending_thread
    _ending_thread = threading.get_ident()
    deadline = time.monotonic() + _END_WITHIN_S
    _wait_until(lambda: _process not in _in_library, deadline)
    clients = [client for client in list(_clients) if client._handle.process == _process]
    closed = [(client, client._close()) for client in clients]
    for client, idle in closed:
        if _wait_until(lambda: idle, deadline):
            client._leave_closed()
