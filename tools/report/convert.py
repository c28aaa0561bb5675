"""Converts the trace of a training step to a layer list for `gradrail bench replay` and `gradrail predict`.

The trace is one of these. gzip may have compressed it.

Kineto     JSON of torch.profiler: an object with "traceEvents", or the list of events alone
execution  JSON of PyTorch's ExecutionTraceObserver, schema 1.0 or 1.1; it has no times
Chakra     JSON objects of chakra_jsonizer, one for each node

Each all-reduce, reduce-scatter and reduce of one step is a layer, ready when it begins. Its elements are fp32. The first
line of the list names the step.
"""
import gzip
import io
import sys
import zlib

import runs
import traces

MOST_BYTES = 1 << 30  # a trace of some steps has up to some hundred megabytes


def add_flags(parser):
    parser.add_argument("trace", help="the file; -: standard input")
    parser.add_argument("-o", dest="output", metavar="FILE", help="the layer list (default: standard output)")


def run(options):
    try:
        about, layers = traces.step_of(text_of(options.trace))
    except traces.Damage as damage:
        raise runs.Problem(f"{options.trace}: {damage}") from None
    lines = [f"# {about}", *(f"layer{index} {4 * elements} {float(ready_us)!r}"
                             for index, (elements, ready_us) in enumerate(layers))]
    text = "\n".join(lines) + "\n"
    if options.output is None:
        sys.stdout.write(text)
        return 0
    with open(options.output, "w", encoding="utf-8") as file:
        file.write(text)
    print(f"{about}: {len(layers)} layers, {sum(4 * elements for elements, _ in layers)} bytes")
    return 0


def text_of(file):
    try:
        content = runs.read_bytes(file, MOST_BYTES)
        if content.startswith(b"\x1f\x8b"):
            content = unpacked(content)
    except OSError as error:
        raise runs.Problem(f"{file}: {error.strerror or error}") from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise traces.Damage("binary, or text in another encoding than UTF-8; convert a Chakra trace with chakra_jsonizer, "
                            "and text with iconv") from None


def unpacked(content):
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as stream:
            text = stream.read(MOST_BYTES + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise traces.Damage(f"damaged gzip data: {error}") from None
    if len(text) > MOST_BYTES:
        raise traces.Damage(f"more than {MOST_BYTES} bytes after decompression")
    return text
