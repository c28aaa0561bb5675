"""Client of the QEMU monitor (QMP: one JSON object per line). It unplugs and plugs in the network cable of a guest."""
import json
import socket

from problem import Problem

ANSWER_SECONDS = 10


class Monitor:
    def __init__(self):
        self._ours, self.guest_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._ours.settimeout(ANSWER_SECONDS)
        self._lines = self._ours.makefile("r", encoding="utf-8")
        self._greeted = False

    def set_link(self, device, up):
        """Changes the carrier of a guest, and thereby the port state of rxe0. A cut of the cable changes neither."""
        try:
            if not self._greeted:
                self._lines.readline()
                self._ask("qmp_capabilities", {})
                self._greeted = True
            self._ask("set_link", {"name": device, "up": up})
        except (OSError, ValueError) as why:
            raise Problem(f"QEMU's monitor does not answer: {why}") from why

    def _ask(self, command, arguments):
        self._ours.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        while True:
            answer = json.loads(self._lines.readline())
            if "error" in answer:
                raise Problem(f"QEMU refuses {command}: {answer['error'].get('desc')}")
            if "return" in answer:  # events can precede the answer
                return

    def close(self):
        self._lines.close()
        self._ours.close()
        self.guest_socket.close()
