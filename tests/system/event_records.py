"""Reads event files of TensorBoard as the formats specify: TFRecord framing with checksums. Each record is an Event in
protobuf's wire format. The reader shares no code with the writer."""
import struct


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    at = 0
    while at < len(data):
        length, length_crc = struct.unpack_from("<QI", data, at)
        body = data[at + 12:at + 12 + length]
        assert len(body) == length and length_crc == masked(data[at:at + 8]), f"record at {at}"
        assert struct.unpack_from("<I", data, at + 12 + length)[0] == masked(body), f"content of the record at {at}"
        yield body
        at += length + 16


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(data):
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 1:
            value, at = struct.unpack_from("<d", data, at)[0], at + 8
        elif kind == 2:
            length, at = varint(data, at)
            value, at = data[at:at + length], at + length
            assert len(value) == length
        elif kind == 5:
            value, at = struct.unpack_from("<f", data, at)[0], at + 4
        else:
            raise AssertionError(f"unexpected wire type {kind}")
        yield number, value


GRAPH = 4  # fields of an Event
SESSION_LOG = 7


def graphs(data):
    """Yields a list of (name, operation, inputs, shape or None) of each graph."""
    for body in records(data):
        for number, graph in fields(body):
            if number == GRAPH:
                yield [node(one) for key, one in fields(graph) if key == 1]


def node(data):
    parts = dict(fields(data))
    shape = None
    for number, entry in fields(data):
        if number == 5 and dict(fields(entry))[1] == b"shape":
            ((_, dimensions),) = fields(dict(fields(entry))[2])
            shape = [dict(fields(one)).get(1, 0) for _, one in fields(dimensions)]
    return parts[1].decode(), parts[2].decode(), [value.decode() for key, value in fields(data) if key == 3], shape


def starts(data):
    """Yields the step of each SessionLog with the status START."""
    for body in records(data):
        parts = dict(fields(body))
        if dict(fields(parts.get(SESSION_LOG, b""))).get(1) == 1:
            yield parts.get(2, 0)


def events(data):
    """Yields (wall time, step, file version or None, {tag: value or None}) of each event, except graphs and SessionLogs."""
    for body in records(data):
        if {GRAPH, SESSION_LOG} & dict(fields(body)).keys():
            continue
        wall_time, step, version, scalars = 0.0, 0, None, {}
        for number, value in fields(body):
            if number == 1:
                wall_time = value
            elif number == 2:
                step = value
            elif number == 3:
                version = value.decode()
            elif number == 5:
                for _, one in fields(value):
                    parts = dict(fields(one))
                    scalars[parts[1].decode()] = parts.get(2)
        yield wall_time, step, version, scalars
