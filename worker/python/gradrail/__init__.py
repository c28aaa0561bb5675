"""gradrail: exchange of gradients and parameters with a sharded parameter server.

    with gradrail.join({"w": (1,), "b": (1,)}, learning_rate=0.1, mode="sync") as client:
        client.start()
        for x, y in batches:
            client.gradients["w"][:], client.gradients["b"][:] = gradient(client.parameters, x, y)
            client.step()

`gradrail run --ps 1 --workers 3 -- python train.py` starts parameter servers and workers on this host. The log goes to
logging.getLogger("gradrail"). Errors are the exceptions of gradrail.errors.
"""
from ._library import LIBRARY as _LIBRARY
from .client import Client, Tensors, join
from .errors import (Aborted, AlreadyExists, Cancelled, DataLoss, DeadlineExceeded, Error, FailedPrecondition, Internal,
                     InvalidArgument, ResourceExhausted, Unavailable)
from .publish import Publisher, Subscriber

__version__ = _LIBRARY.gradrail_version().decode()
__all__ = [
    "Aborted", "AlreadyExists", "Cancelled", "Client", "DataLoss", "DeadlineExceeded", "Error", "FailedPrecondition",
    "Internal", "InvalidArgument", "Publisher", "ResourceExhausted", "Subscriber", "Tensors", "Unavailable", "join"
]
