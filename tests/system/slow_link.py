"""A slow link between two network namespaces: rate, delay, loss, reordering and a queue of packets, as those of tc netem.

It moves the frames of two TAP devices, and needs no module of the kernel. Usage as a program, by SlowLink only:
slow_link.py NAMESPACE DEVICE NAMESPACE DEVICE JSON, where JSON has the fields of Shape.
"""
import collections
import ctypes
import dataclasses
import fcntl
import heapq
import json
import os
import random
import select
import struct
import subprocess
import sys
import time

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
FRAME_BYTES = 2048


@dataclasses.dataclass
class Shape:
    """A link in each of its directions."""
    rate: float  # bits/s, with the headers of Ethernet
    delay: float = 0.04  # seconds in one direction
    loss: float = 0.0  # share of the packets
    reorder: float = 0.0  # share of the packets that arrive `early` seconds before their turn
    early: float = 0.002
    queue: int = 1000  # packets that wait for the link; others are dropped
    seed: int = 1


class Direction:
    """The packets from one device to the other. Independent of the clock and of the devices."""

    def __init__(self, shape, seed):
        self.shape, self.chance = shape, random.Random(seed)
        self.free_at = 0.0  # the link has sent all packets so far
        self.waiting = collections.deque()  # times at which queued packets leave
        self.under_way = []  # heap of (arrival, number, packet)
        self.number = 0
        self.counts = {"packets": 0, "bytes": 0, "lost": 0, "dropped": 0, "reordered": 0}

    def accept(self, packet, now):
        while self.waiting and self.waiting[0] <= now:
            self.waiting.popleft()
        if len(self.waiting) >= self.shape.queue:
            self.counts["dropped"] += 1
            return
        self.free_at = max(self.free_at, now) + 8 * len(packet) / self.shape.rate
        self.waiting.append(self.free_at)
        self.counts["packets"] += 1
        self.counts["bytes"] += len(packet)
        if self.chance.random() < self.shape.loss:
            self.counts["lost"] += 1
            return
        arrival = self.free_at + self.shape.delay
        if self.chance.random() < self.shape.reorder:
            self.counts["reordered"] += 1
            arrival -= min(self.shape.early, self.shape.delay)
        self.number += 1
        heapq.heappush(self.under_way, (arrival, self.number, packet))

    def arrived(self, now):
        while self.under_way and self.under_way[0][0] <= now:
            yield heapq.heappop(self.under_way)[2]


class SlowLink:
    """Runs the link in another process. The devices exist when the constructor returns."""

    def __init__(self, ends, shape):
        command = [sys.executable, __file__, *(word for end in ends for word in end), json.dumps(dataclasses.asdict(shape))]
        # pylint: disable-next=consider-using-with
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "ready\n":
            raise RuntimeError("the slow link has not started: is /dev/net/tun permitted?")

    def close(self):
        """Ends the link. Returns the counts of both directions."""
        output, _ = self.process.communicate()
        return json.loads(output)


def open_tap(namespace, device):
    descriptor = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, 0) != 0:
        raise OSError(ctypes.get_errno(), f"setns {namespace}")
    os.close(descriptor)
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TAP | IFF_NO_PI))
    return tap


def move(taps, directions):
    """Moves frames until stdin ends."""
    poll = select.epoll()
    poll.register(sys.stdin.fileno(), select.EPOLLIN)
    for tap in taps:
        poll.register(tap, select.EPOLLIN)
    while True:
        now = time.monotonic()
        due = min((direction.under_way[0][0] for direction in directions if direction.under_way), default=now + 1)
        for descriptor, _ in poll.poll(max(0.0, due - now)):
            if descriptor == sys.stdin.fileno():
                return
            direction = directions[taps.index(descriptor)]
            for _ in range(64):
                try:
                    packet = os.read(descriptor, FRAME_BYTES)
                except (BlockingIOError, OSError):  # the latter: the device is down
                    break
                direction.accept(packet, time.monotonic())
        now = time.monotonic()
        for direction, target in zip(directions, reversed(taps)):
            for packet in direction.arrived(now):
                try:
                    os.write(target, packet)
                except OSError:  # the device is down
                    pass


def main():
    shape = Shape(**json.loads(sys.argv[5]))
    taps = [open_tap(*sys.argv[1:3]), open_tap(*sys.argv[3:5])]
    directions = [Direction(shape, 2 * shape.seed + i) for i in range(2)]
    try:  # a link does not wait for a core
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        pass
    print("ready", flush=True)
    move(taps, directions)
    print(json.dumps([direction.counts for direction in directions]), flush=True)


if __name__ == "__main__":
    main()
