"""The virtual cable: a learning Ethernet switch between guests. It runs in a thread, over stream sockets of QEMU.

The multicast and datagram networks of QEMU lose frames. On a stream, each frame follows its length:
    | length: 4 bytes, big-endian | frame |
A full output queue drops frames, like that of a real switch. The cable can drop all frames, or only those of one UDP
port. If it drops UDP port 4791, RoCE fails and TCP on the same device works.
"""
import collections
import select
import socket
import threading

ROCE_PORT = 4791
QUEUE_FRAMES = 8192  # 34 MB of the largest frames: more than all windows in flight, less than the memory of a guest
SOCKET_BYTES = 4 << 20  # the kernel limits it to net.core.{r,w}mem_max
UDP = 17


class Switch:
    def __init__(self, port_count):
        """`guest_sockets` are for the guests. The caller closes them after the guests have inherited them."""
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(port_count)]
        for pair in pairs:
            for end in pair:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
                end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
        self._ports = [ours for ours, _ in pairs]
        self.guest_sockets = [theirs for _, theirs in pairs]
        self.carried_bytes = self.roce_bytes = self.dropped_frames = self.lost_frames = 0
        # Any thread sets these, and the thread of the switch reads them. An assignment in Python is atomic.
        self._cut = False
        self._dropped_ports = frozenset()
        self._stopping = False
        self._addresses = {}  # MAC address of a network device -> its port
        self._input = [b""] * port_count
        self._output = [collections.deque() for _ in range(port_count)]
        self._poll = select.epoll()
        self._thread = threading.Thread(target=self._serve, name="switch", daemon=True)

    def start(self):
        for port, end in enumerate(self._ports):
            end.setblocking(False)
            self._poll.register(end.fileno(), select.EPOLLIN)
        self._index = {end.fileno(): port for port, end in enumerate(self._ports)}
        self._thread.start()

    def stop(self):
        self._stopping = True
        if self._thread.is_alive():
            self._thread.join(5)
        for end in self._ports + self.guest_sockets:
            end.close()

    def cut(self):
        self._cut = True

    def drop_udp(self, port):
        self._dropped_ports = self._dropped_ports | {port.to_bytes(2, "big")}

    def restore(self):
        self._cut, self._dropped_ports = False, frozenset()

    def _serve(self):
        while not self._stopping:
            dirty = set()
            for fd, events in self._poll.poll(0.2):
                port = self._index[fd]
                if events & select.EPOLLOUT:
                    dirty.add(port)
                if events & select.EPOLLIN:
                    self._read(port, dirty)
                elif events & (select.EPOLLHUP | select.EPOLLERR):
                    self._poll.modify(fd, 0)  # the guest has exited
            for port in dirty:
                self._flush(port)

    def _read(self, port, dirty):
        try:
            received = self._ports[port].recv(1 << 20)
        except OSError:
            return
        if not received:
            self._poll.modify(self._ports[port].fileno(), 0)
            return
        frames, self._input[port] = split_frames(self._input[port] + received)
        for frame in frames:
            self._forward(port, frame, dirty)

    def _forward(self, source, frame, dirty):
        self._addresses[frame[6:12]] = source
        roce = is_udp_to(frame, _ROCE)
        if self._cut or (self._dropped_ports and any(is_udp_to(frame, port) for port in self._dropped_ports)):
            self.dropped_frames += 1
            return
        self.carried_bytes += len(frame)
        if roce:
            self.roce_bytes += len(frame)
        known = self._addresses.get(frame[:6])
        is_flooded = known is None or frame[0] & 1
        for target in range(len(self._ports)) if is_flooded else (known,):
            if target == source:
                continue
            if len(self._output[target]) >= QUEUE_FRAMES:
                self.lost_frames += 1
            else:
                self._output[target].append(len(frame).to_bytes(4, "big") + frame)
                dirty.add(target)

    def _flush(self, port):
        queue, end = self._output[port], self._ports[port]
        try:
            while queue:
                sent = end.send(queue[0])
                if sent == len(queue[0]):
                    queue.popleft()
                else:
                    queue[0] = queue[0][sent:]
        except BlockingIOError:
            pass
        except OSError:
            queue.clear()  # the guest has exited
        self._poll.modify(end.fileno(), select.EPOLLIN | (select.EPOLLOUT if queue else 0))


_ROCE = ROCE_PORT.to_bytes(2, "big")


def split_frames(data):
    """Returns (complete frames, the remaining bytes)."""
    frames, start = [], 0
    while len(data) - start >= 4:
        end = start + 4 + int.from_bytes(data[start:start + 4], "big")
        if end > len(data):
            break
        frames.append(data[start + 4:end])
        start = end
    return frames, data[start:]


def is_udp_to(frame, port):
    """Returns whether a frame holds UDP to `port` (two bytes). IPv4 must have no options, IPv6 no extensions."""
    if frame[12:14] == b"\x08\x00":
        return frame[23] == UDP and frame[36:38] == port
    return frame[12:14] == b"\x86\xdd" and frame[20] == UDP and frame[56:58] == port
