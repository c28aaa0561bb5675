"""The C library libgradrail.so, as ctypes declarations of gradrail/gradrail.h and gradrail/publish.h."""
import atexit
import ctypes
import logging
import os
import pathlib

FOLDER = pathlib.Path(__file__).resolve().parent
LOGGER = logging.getLogger("gradrail")
_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)

INTERRUPTED = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


class Tensor(ctypes.Structure):
    """gradrail_tensor."""

    _fields_ = [("name", ctypes.c_char_p), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("dimension_count", ctypes.c_size_t)]


class Options(ctypes.Structure):
    """gradrail_options, member by member."""

    _fields_ = [
        ("struct_bytes", ctypes.c_size_t), ("ps_hosts", ctypes.c_char_p), ("worker_hosts", ctypes.c_char_p),
        ("task_index", ctypes.c_uint32), ("bucket_bytes", ctypes.c_uint32), ("mode", ctypes.c_char_p),
        ("optimizer", ctypes.c_char_p), ("learning_rate", ctypes.c_float), ("momentum", ctypes.c_float),
        ("beta1", ctypes.c_float), ("beta2", ctypes.c_float), ("epsilon", ctypes.c_float),
        ("weight_decay", ctypes.c_float), ("momentum_every", ctypes.c_uint32), ("push", ctypes.c_char_p),
        ("returns", ctypes.c_char_p), ("transports", ctypes.c_char_p), ("no_fallback", ctypes.c_int32),
        ("checksums", ctypes.c_int32), ("bind_host", ctypes.c_char_p), ("path_timeout_s", ctypes.c_double),
        ("streams", ctypes.c_uint32), ("no_rails", ctypes.c_int32), ("secret_file", ctypes.c_char_p),
        ("trusted_ca_file", ctypes.c_char_p), ("cert_file", ctypes.c_char_p), ("key_file", ctypes.c_char_p),
        ("encrypt_data", ctypes.c_int32), ("insecure", ctypes.c_int32), ("backup_hosts", ctypes.c_char_p),
        ("join_timeout_s", ctypes.c_double), ("rejoin_timeout_s", ctypes.c_double), ("interrupted", INTERRUPTED),
        ("context", ctypes.c_void_p)
    ]


class PublishOptions(ctypes.Structure):
    """gradrail_publish_options."""

    _fields_ = [("struct_bytes", ctypes.c_size_t), ("listen", ctypes.c_char_p), ("format", ctypes.c_char_p),
                ("keep", ctypes.c_uint32), ("max_readers", ctypes.c_uint32), ("reader_timeout_s", ctypes.c_double),
                ("secret_file", ctypes.c_char_p), ("insecure", ctypes.c_int32)]


class SubscribeOptions(ctypes.Structure):
    """gradrail_subscribe_options."""

    _fields_ = [("struct_bytes", ctypes.c_size_t), ("address", ctypes.c_char_p), ("follow", ctypes.c_char_p),
                ("silence_timeout_s", ctypes.c_double), ("secret_file", ctypes.c_char_p), ("insecure", ctypes.c_int32)]


def _path() -> str:
    """Returns the library of this package, or that of GRADRAIL_LIBRARY; else the system has it."""
    chosen = os.environ.get("GRADRAIL_LIBRARY")
    if chosen:
        return chosen
    inside = FOLDER / "lib" / "libgradrail.so.1"
    return str(inside) if inside.exists() else "libgradrail.so.1"


def _load() -> ctypes.CDLL:
    path = _path()
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"gradrail cannot load its library {path}: {error}; install the wheel of gradrail again, or "
                          "name the library with GRADRAIL_LIBRARY") from error
    client, status, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
    for name, result, *arguments in (
        ("join_fragments", status, ctypes.POINTER(Options), ctypes.POINTER(Tensor), ctypes.POINTER(ctypes.c_char_p), size,
         ctypes.POINTER(client)),
        ("parameters", client, client, size, ctypes.POINTER(size)),
        ("gradients", client, client, size, ctypes.POINTER(size)),
        ("start", status, client),
        ("ready_many", status, client, ctypes.POINTER(size), size),
        ("pull", status, client),
        ("set_learning_rate", status, client, ctypes.c_float),
        ("set_weight", status, client, ctypes.c_float),
        ("fragment_step", ctypes.c_uint64, client, size),
        ("fragment_position", ctypes.c_int64, client, size),
        ("global_step", ctypes.c_uint64, client),
        ("task_index", ctypes.c_uint32, client),
        ("is_chief", ctypes.c_int, client),
        ("position", ctypes.c_uint64, client),
        ("stats_json", ctypes.c_char_p, client),
        ("barrier", status, client, ctypes.c_char_p),
        ("save_checkpoint", status, client),
        ("begin_checkpoint", status, client),
        ("finish_checkpoint", status, client),
        ("finish_steps", status, client),
        ("give_up", status, client, ctypes.c_char_p),
        ("leave", status, client),
        ("free", None, client),
        ("publisher_open", status, ctypes.POINTER(PublishOptions), ctypes.POINTER(Tensor), size,
         ctypes.POINTER(client)),
        ("publisher_address", ctypes.c_char_p, client),
        ("publisher_publish", status, client, ctypes.c_uint64, ctypes.POINTER(client), size),
        ("publisher_stats_json", ctypes.c_char_p, client),
        ("publisher_close", status, client, ctypes.c_double),
        ("publisher_free", None, client),
        ("subscriber_open", status, ctypes.POINTER(SubscribeOptions), ctypes.POINTER(client)),
        ("subscriber_connect", status, client, ctypes.c_double),
        ("subscriber_tensors", ctypes.POINTER(Tensor), client, ctypes.POINTER(size)),
        ("subscriber_format", ctypes.c_char_p, client),
        ("subscriber_bits", client, client, size, ctypes.POINTER(size)),
        ("subscriber_resume", status, client, ctypes.c_uint64, ctypes.POINTER(client), size),
        ("subscriber_next", status, client, ctypes.c_double, ctypes.POINTER(ctypes.c_uint64)),
        ("subscriber_hash", ctypes.c_char_p, client),
        ("subscriber_stats_json", ctypes.c_char_p, client),
        ("subscriber_free", None, client),
        ("set_log", None, _LOG, ctypes.c_int, ctypes.c_void_p),
        ("version", ctypes.c_char_p),
        ("last_error", ctypes.c_char_p),
    ):
        function = getattr(library, "gradrail_" + name)
        function.restype = result
        function.argtypes = arguments
    # Calls of each step have no argument types: ctypes then converts no argument, and the callers pass ctypes objects.
    for name in ("ready", "exchange", "wait", "step", "exchange_fragment", "wait_fragment"):
        getattr(library, "gradrail_" + name).restype = status
    return library


LIBRARY = _load()


@_LOG
def _to_logging(level, text, _context):
    try:
        LOGGER.log(_LEVELS[level], "%s", text.decode("utf-8", "replace"))
    except Exception:  # no exception may enter the library
        logging.lastResort.handleError(None)


def last_error() -> str:
    """Returns the text of the last failed call of this thread."""
    return LIBRARY.gradrail_last_error().decode("utf-8", "replace")


# A handler of the program decides which records are shown. Without one, Python shows warnings and errors.
LIBRARY.gradrail_set_log(_to_logging, 1, None)
# No thread of the library may call Python after the end of the interpreter.
atexit.register(LIBRARY.gradrail_set_log, _LOG(), 1, None)
