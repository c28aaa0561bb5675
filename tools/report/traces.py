"""Reads the traces of training steps: the gradients of one step, and when they become ready.

Each reader returns a text about the step and its layers: [(elements, microseconds from the beginning of the step)].
"""
import json
import re

from runs import LARGEST, shown

# A reduction has at most a terabyte of fp32. A larger number is damage.
MOST_ELEMENTS = 250_000_000_000
MOST_LAYERS = 100_000  # value of bench/suites/layer_list.cc
LONGEST_STEP_US = 60e6  # a larger number is a mistake in the unit
HEAD = 256  # PyTorch writes the schema of an execution trace first


class Damage(Exception):
    """What is wrong with a trace. The caller adds the name of the file."""


def step_of(text):
    """The content decides the kind."""
    text = text.lstrip(" \t\r\n")
    if not text.startswith(("{", "[")):
        raise unknown("a text")
    if text.startswith("[") and '"ph"' not in text:
        raise unknown('a JSON list without "ph"')
    # Metadata may precede the events. A Chakra trace has no such word.
    is_kineto = text.startswith("[") or '"traceEvents"' in text
    about, layers = (step_of_kineto if is_kineto else step_of_execution if '"schema":' in text[:HEAD] else step_of_chakra)(text)
    layers.sort(key=lambda layer: layer[1])
    if len(layers) > MOST_LAYERS:
        raise Damage(f"{len(layers)} reductions in one step, more than {MOST_LAYERS}")
    if layers[-1][1] > LONGEST_STEP_US:
        raise Damage(f"{about}: a reduction begins after {layers[-1][1] * 1e-6:.3g} s, and a step has at most "
                     f"{LONGEST_STEP_US * 1e-6:.0f} s")
    return about, layers


def unknown(what):
    return Damage(f'{what}: no trace. A trace of Kineto is {{"traceEvents": […]}} or a list of events with "ph"; of PyTorch, '
                  '{"schema": …, "nodes": […]} with the schema first; of Chakra, JSON objects with "type", one after the other '
                  "(chakra_jsonizer)")


def bad_field(where, field, found, expected):
    return Damage(f"{where}: {field} is {found}, and must be {expected}; correct it, or record the trace again")


def nth_node(number, node):
    """A node without a usable number, as errors name it."""
    return f"node {number} of the file (name {shown(node.get('name'))})"


def refuse_constant(name):
    raise ValueError(f"{name} is no JSON")


def take_objects(text, take):
    """Calls take() for each object, the inner ones first. An object for which it returns True is dropped: a trace has
    millions of them. An error comes after all objects, because a later one may say that the whole trace is
    of another kind."""
    damages = []

    def hook(json_object):
        try:
            return None if take(json_object) else json_object
        except Damage as damage:
            damages.append(damage)
            return None
    decode(lambda: json.loads(text, object_hook=hook, parse_constant=refuse_constant))
    return damages


def decode(parse):
    try:
        return parse()
    except (ValueError, RecursionError) as error:
        raise Damage(f"not JSON: {error}") from None


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_count(value, most):
    """4096 or 4096.0"""
    return is_number(value) and 0 <= value <= most and value == int(value)


# Collectives of PyTorch that reduce gradients: "allreduce", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced".

def letters_of(collective):
    return re.sub("[^a-z]", "", collective.lower())


def is_reduction(collective):
    letters = letters_of(collective)
    return letters == "reduce" or letters.startswith(("allreduce", "reducescatter"))


def collective_of_operator(name):
    """"c10d::allreduce_": "allreduce_". "" for other names."""
    return name[len("c10d::"):] if name.startswith("c10d::") else ""


def elements_of(shapes, where, field):
    """The elements of a list of shapes of tensors, [[2, 3], []]: 7. 0: an empty list, as earlier versions of PyTorch write
    for a list of tensors, or empty tensors."""
    if shapes == []:
        return 0
    count = elements_in(shapes, 0)
    if count is None or count > MOST_ELEMENTS:
        raise bad_field(where, field, shown(shapes),
                        f"lists of numbers from 0 without quotes, at most {MOST_ELEMENTS} elements in all")
    return int(count)


def elements_in(shape, depth):
    """None: damage. An empty shape is a scalar. A list of lists of tensors is the deepest that PyTorch writes."""
    if not isinstance(shape, list) or depth > 3:
        return None
    total, product = 0, 1
    for each in shape:
        if isinstance(each, list):
            count = elements_in(each, depth + 1)
            if count is None:
                return None
            total += count
        elif is_count(each, MOST_ELEMENTS):
            product *= each
        else:
            return None
        if isinstance(each, list):
            product = 0
    return max(total, product)


def elements_of_operator(collective, shapes, where, field):
    """A reduce-scatter has its results first, then its gradients. 0: the list is too short."""
    argument = 1 if letters_of(collective).startswith("reducescatter") else 0
    if not isinstance(shapes, list):
        return elements_of(shapes, where, field)
    return elements_of(shapes[argument], where, field) if argument < len(shapes) else 0


# Kineto. Events that count here:
#
#   {"ph": "X", "name": "ProfilerStep#3", "ts": 1000.0, "dur": 500.0}               a step; times in microseconds
#   {… "name": "record_param_comms", "args": {"Collective name": "allreduce", "In msg nelems": 4096}}
#   {… "cat": "kernel", "name": "ncclDevKernel_…", "args": {the same}}
#   {… "name": "c10d::allreduce_", "args": {"Input Dims": [[[4096]], [], …]}}       with record_shapes=True
#   {… "name": "gloo:all_reduce", "args": {"Input Dims": [[4096]]}}                 the same

# One collective has up to four events. Only one kind counts. A task is the last choice, since it may begin later: Gloo
# has few threads, and a task waits for one.
KERNEL, PARAMETERS, CALL, TASK = KINDS = ("kernel", "parameters", "call", "task")
STEP, GPU_ANNOTATION = "ProfilerStep#", "gpu_user_annotation"
TASKS = re.compile("(?:nccl|gloo|mpi|ucc|xccl):(.*)")


class KinetoEvents:
    def __init__(self):
        self.reductions = []  # (kind, start, elements); elements 0: not in the trace, or an empty tensor
        self.steps = []  # (name, start, end, whether it is an annotation on the GPU)
        self.others = set()  # collectives that reduce nothing
        self.first_us = float("inf")
        self.count = self.empty = 0  # empty: reductions with a number of elements that is 0

    def take(self, event):
        if "ph" not in event:
            return False
        if event["ph"] == "X":
            self.count += 1
            self.take_complete(event)
        return True

    def take_complete(self, event):
        start_us = self.micros(event, "ts", float("-inf"))
        self.first_us = min(self.first_us, start_us)
        name, category = text_at(event, "name"), text_at(event, "cat")
        if name.startswith(STEP):
            self.steps.append((name, start_us, start_us + self.micros(event, "dur", 0), category == GPU_ANNOTATION))
            return
        arguments = event.get("args") if isinstance(event.get("args"), dict) else {}
        kind, collective = described(name, category, arguments)
        if collective and not is_reduction(collective):
            self.others.add(collective)
        elif collective:
            elements = self.elements(kind, collective, arguments, event)
            self.empty += elements == 0 and "In msg nelems" in arguments
            self.reductions.append((kind, start_us, elements))

    def micros(self, event, field, least):
        value = event.get(field)
        if is_number(value) and value >= least and abs(value) < LARGEST:
            return float(value)
        raise bad_field(self.event_name(event), field, shown(value) if field in event else "missing",
                        f"a number of microseconds{' from 0' if least == 0 else ''}, without quotes")

    def elements(self, kind, collective, arguments, event):
        where, field = self.event_name(event), "In msg nelems" if kind in (KERNEL, PARAMETERS) else "Input Dims"
        if field not in arguments:
            return 0
        value = arguments[field]
        if kind == CALL:
            return elements_of_operator(collective, value, where, field)
        if kind == TASK:
            return elements_of(value, where, field)
        if not is_count(value, MOST_ELEMENTS):
            raise bad_field(where, field, shown(value), f"a whole number from 0 to {MOST_ELEMENTS}, without quotes")
        return int(value)

    def event_name(self, event):
        name, start = (shown(event[field]) if field in event else "missing" for field in ("name", "ts"))
        return f"event {self.count} of those with ph X (name {name}, ts {start})"


def text_at(json_object, name):
    value = json_object.get(name)
    return value if isinstance(value, str) else ""


def described(name, category, arguments):
    """Returns the kind of an event and its collective; "": none."""
    collective = text_at(arguments, "Collective name")
    if collective:
        return KERNEL if category in ("kernel", "Kernel") else PARAMETERS, collective
    if collective_of_operator(name):
        return CALL, collective_of_operator(name)
    # The annotation on the GPU repeats that of the host.
    task = TASKS.fullmatch(name) if category != GPU_ANNOTATION else None
    return TASK, task[1] if task else ""


def reductions_of_one_kind(reductions):
    """The events of the first kind that have sizes, all of them if possible: earlier versions of PyTorch write the shapes of
    some calls only."""
    some_sized = []
    for kind in KINDS:
        of_kind = [each for each in reductions if each[0] == kind]
        sized = [each for each in of_kind if each[2] > 0]
        if sized and len(sized) == len(of_kind):
            return sized
        some_sized = some_sized or sized
    return some_sized


def step_of_kineto(text):
    """Annotations ProfilerStep#N separate the steps. Of those with reductions, the one with the median duration counts. A
    trace without annotations is one step."""
    events = KinetoEvents()
    for damage in take_objects(text, events.take):
        raise damage
    if not events.reductions:
        raise Damage("a Kineto trace without all-reduce, reduce-scatter or reduce: looked for record_param_comms, c10d::…, "
                     f"nccl:…, gloo:…; found {events.count} events, {len(events.steps)} steps, "
                     f"{'collectives ' + ', '.join(sorted(events.others)) if events.others else 'no collective'}; trace a step of a "
                     "run with several processes")
    reductions, found = reductions_of_one_kind(events.reductions), len(events.reductions)
    if not reductions and events.empty == found:
        raise Damage(f"a Kineto trace with {found} events of reductions, all with In msg nelems 0: trace a step that reduces "
                     "gradients")
    if not reductions:
        raise Damage(f"a Kineto trace with {found} events of reductions, none with a size (In msg nelems or Input Dims): record "
                     "it with profile(record_shapes=True), in a PyTorch with torch.profiler.kineto_available()")
    steps = steps_around(events.steps, reductions[0][0])
    if not steps:
        return ("Kineto trace without ProfilerStep#N: all of it is one step",
                [(elements, start - events.first_us) for _, start, elements in reductions])
    with_layers = []
    for name, begin, end, _ in steps:
        layers = [(elements, start - begin) for _, start, elements in reductions if begin <= start < end]
        if layers:
            with_layers.append((end - begin, name, layers))
    if not with_layers:
        raise Damage(f"a Kineto trace with {len(reductions)} reductions, all outside of its {len(steps)} steps ({steps[0][0]} …)")
    with_layers.sort(key=lambda step: step[0])
    _, name, layers = with_layers[len(with_layers) // 2]
    return f"Kineto trace: {name}, the median of {len(with_layers)} steps with reductions", layers


def steps_around(steps, kind):
    """Annotations on the GPU frame the kernels, which run later than their calls."""
    on_gpu, on_host = ([step for step in steps if step[3] == is_gpu] for is_gpu in (True, False))
    return on_gpu or on_host if kind == KERNEL else on_host


# An execution trace of PyTorch counts its nodes in the order in which they begin, and has no times:
#
#   {"schema": "1.1.1-chakra.0.0.4", "nodes": [
#     {"id": 3, "name": "ProfilerStep#4", …},
#     {"id": 255, "name": "c10d::allreduce_", "inputs": {"shapes": [[[4096]], [], …]}, …}]}
#
# Schema 1.0.1 has "input_shapes" in the node.

SCHEMAS = ("1.0", "1.1")  # the patches of both differ in fields that are not read


class ExecutionNodes:
    def __init__(self):
        self.steps = []  # (id, name); a step ends at the next one
        self.reductions = []  # (id, elements)
        self.collectives = set()  # all that were found
        self.count = 0
        self.bad_schema = None

    def take(self, node):
        if "schema" in node and "nodes" in node:
            self.check_schema(node["schema"])
        if not ("id" in node and "name" in node and ("inputs" in node or "input_shapes" in node)):
            return False
        self.count += 1
        self.take_node(node)
        return True

    def check_schema(self, schema):
        text = schema if isinstance(schema, str) else ""
        if not any(text == each or text.startswith(f"{each}.") for each in SCHEMAS):
            self.bad_schema = Damage(f"an execution trace of PyTorch with schema {shown(schema)}: schemas {' and '.join(SCHEMAS)} "
                                     "are read; record the trace with a version of PyTorch that writes one of them")

    def take_node(self, node):
        number, name = node["id"], node["name"]
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 1 << 64:
            raise bad_field(nth_node(self.count, node), "id", shown(number),
                            f"a whole number from 0 to {(1 << 64) - 1}, without quotes")
        if not isinstance(name, str):
            return
        if name.startswith(STEP):
            self.steps.append((number, name))
        collective = collective_of_operator(name)
        if not collective:
            return
        self.collectives.add(collective)
        holder, field = (node["inputs"], "shapes") if isinstance(node.get("inputs"), dict) else (node, "input_shapes")
        if is_reduction(collective) and field in holder:
            elements = elements_of_operator(collective, holder[field], f"node {number} ({shown(name)})", field)
            if elements > 0:
                self.reductions.append((number, elements))


def step_of_execution(text):
    """Steps are as above, and the middle one counts. Each reduction is ready at the beginning."""
    nodes = ExecutionNodes()
    damages = take_objects(text, nodes.take)
    if nodes.bad_schema:  # first: the nodes of another schema may look damaged
        raise nodes.bad_schema
    for damage in damages:
        raise damage
    if not nodes.reductions:
        raise Damage("an execution trace of PyTorch without gradients: looked for c10d::allreduce_, c10d::reduce_ and "
                     f"c10d::…reduce_scatter… with shapes; found {nodes.count} nodes, "
                     f"{'collectives ' + ', '.join(sorted(nodes.collectives)) if nodes.collectives else 'no collective'}; trace a "
                     "run with several processes")
    # A node is written when it ends.
    begins = [*sorted(nodes.steps), (float("inf"), "")]
    reductions = sorted(nodes.reductions)
    steps = []
    for (begin, name), (end, _) in zip(begins, begins[1:]):
        layers = [(elements, 0.0) for number, elements in reductions if begin <= number < end]
        if layers:
            steps.append((name, layers))
    no_times = "without times, all gradients are ready at the beginning"
    if not steps:
        return (f"PyTorch execution trace: all of it is one step; {no_times}", [(elements, 0.0) for _, elements in reductions])
    name, layers = steps[len(steps) // 2]
    return f"PyTorch execution trace: {name}, the middle of {len(steps)} steps with reductions; {no_times}", layers


# A Chakra trace in JSON: an object with metadata, then one for each node. protobuf writes 64-bit numbers as text and
# leaves out zeros:
#
#   {"version": "0.0.4"}
#   {"id": "7", "name": "backward", "type": "COMP_NODE", "durationMicros": "120", "dataDeps": ["6"]}
#   {"id": "8", "type": "COMM_COLL_NODE", "dataDeps": ["7"],
#    "attr": [{"name": "comm_type", "int64Val": "0"}, {"name": "comm_size", "int64Val": "4096"}]}   bytes
#
# Source: et_def.proto of MLCommons Chakra.

# CollectiveCommType: all-reduce, reduce, reduce-scatter, reduce-scatter of blocks.
REDUCTIONS = (0, 1, 7, 8, "ALL_REDUCE", "REDUCE", "REDUCE_SCATTER", "REDUCE_SCATTER_BLOCK")
MOST_TRACED_BYTES = 10 ** 12
LATEST_START_US = 10 ** 17  # a time since 1970 is smaller by two digits
LONGEST_NODE_US = 10 ** 11  # 28 hours
LAST_NUMBER = (1 << 64) - 1


def count_of(value):
    """5, "5"; None for other values."""
    if isinstance(value, str):
        return int(value) if re.fullmatch("[0-9]{1,20}", value) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def checked_count(value, most, where, field):
    count = count_of(value)
    if count is None or count > most:
        raise bad_field(where, field, shown(value), f"a whole number from 0 to {most}")
    return count


def checked_list(node, field, where):
    """The numbers of other nodes; none if the field is missing."""
    values = node.get(field, [])
    if not isinstance(values, list):
        raise bad_field(where, field, shown(values), "a list of the ids of nodes")
    return [checked_count(value, LAST_NUMBER, where, f"an item of {field}") for value in values]


def attribute(node, name):
    """The value of an attribute, or None. Its field depends on the type: "int64Val", "stringVal"."""
    attributes = node.get("attr")
    for each in attributes if isinstance(attributes, list) else []:
        if isinstance(each, dict) and each.get("name") == name:
            for field, value in each.items():
                if field.endswith("Val"):
                    return value
    return None


class ChakraNode:
    def __init__(self, node, where, other_collectives):
        self.start_us = checked_count(node.get("startTimeMicros", 0), LATEST_START_US, where, "startTimeMicros")
        self.duration_us = checked_count(node.get("durationMicros", 0), LONGEST_NODE_US, where, "durationMicros")
        self.dependencies = checked_list(node, "dataDeps", where)
        # "ctrlDeps" names the caller of an operator, also one that the converter has dropped. Chakra's own feeder waits
        # for "dataDeps" alone.
        checked_list(node, "ctrlDeps", where)
        self.bytes = 0  # size of a reduction; 0 if it is missing, as in protobuf
        kind = attribute(node, "comm_type")
        is_collective = node["type"] == "COMM_COLL_NODE"
        self.is_reduction = is_collective and kind is not None and (kind in REDUCTIONS[4:] or count_of(kind) in REDUCTIONS[:4])
        if is_collective and not self.is_reduction:
            other_collectives.add(shown(kind))
        size = attribute(node, "comm_size") if self.is_reduction else None
        if size is not None:
            count = count_of(size)
            if count is None or count > MOST_TRACED_BYTES:
                raise bad_field(where, "comm_size", shown(size), f"a whole number of bytes from 0 to {MOST_TRACED_BYTES}")
            self.bytes = count


def chakra_nodes_of(text):
    """Returns {id: node}, and the types of collectives that reduce nothing."""
    decoder, nodes, others, position = json.JSONDecoder(parse_constant=refuse_constant), {}, set(), 0
    while position < len(text):
        value, end = decode(lambda: decoder.raw_decode(text, position))
        position = re.compile(r"[ \t\r\n]*").match(text, end).end()
        if not isinstance(value, dict):
            raise unknown(f"JSON with {shown(value)} beside objects")
        if "workload_graph" in value:
            raise Damage("a workload graph of Chakra: convert the .et file of the same run with chakra_jsonizer")
        if "type" not in value:  # metadata
            continue
        number = checked_count(value.get("id", 0), LAST_NUMBER, nth_node(len(nodes) + 1, value), "id")
        where = f"node {number} ({shown(value.get('name'))})"
        node = ChakraNode(value, where, others)
        if number in nodes:
            raise bad_field(where, "id", f"{number} again", "the number of one node")
        nodes[number] = node
    if not nodes:
        raise unknown('JSON objects without "type"')
    for number, node in sorted(nodes.items()):
        for before in node.dependencies:
            if before not in nodes:
                raise bad_field(f"node {number}", "an item of dataDeps", before, "the id of a node of this trace")
    return nodes, others


def earliest_starts(nodes):
    """The start of each node if it starts when its last dependency ends. Source: Kahn, CACM 5 (1962)."""
    missing = {number: len(node.dependencies) for number, node in nodes.items()}
    followers = {}
    for number, node in nodes.items():
        for before in node.dependencies:
            followers.setdefault(before, []).append(number)
    ready = [number for number, count in missing.items() if count == 0]
    starts, done = dict.fromkeys(nodes, 0), 0
    while ready:
        number = ready.pop()
        done += 1
        # The replayed exchange replaces a reduction.
        end = starts[number] + (0 if nodes[number].is_reduction else nodes[number].duration_us)
        for following in followers.get(number, []):
            starts[following] = max(starts[following], end)
            missing[following] -= 1
            if missing[following] == 0:
                ready.append(following)
    if done < len(nodes):
        raise Damage("a Chakra trace with dependencies in a circle")
    return starts


def step_of_chakra(text):
    """The trace is one step. Without start times, a node starts as soon as its dependencies end, and a reduction takes no
    time."""
    nodes, others = chakra_nodes_of(text)
    if not any(node.bytes for node in nodes.values()):
        raise Damage("a Chakra trace without gradients: looked for COMM_COLL_NODE with comm_type ALL_REDUCE, REDUCE or "
                     f"REDUCE_SCATTER and a comm_size above 0; found {len(nodes)} nodes, "
                     f"{'comm_type ' + ', '.join(sorted(others)) if others else 'no other collective'}")
    if any(node.start_us for node in nodes.values()):
        about = "Chakra trace, by its start times"
        starts = {number: node.start_us for number, node in nodes.items()}
        # Nodes without times are annotations.
        first = min(node.start_us for node in nodes.values() if node.start_us or node.duration_us)
    else:
        about, starts, first = "Chakra trace, by its dependencies and durations", earliest_starts(nodes), 0
    # The type of the elements is not in the trace.
    return about, [((node.bytes + 3) // 4, float(max(starts[number] - first, 0)))
                   for number, node in sorted(nodes.items()) if node.bytes]
