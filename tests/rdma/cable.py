"""What jobs in a guest may ask of the cable: the command `cable` there (guest/cable) writes a file, this answers it.

    cut | restore | drop-udp PORT      everything is lost | nothing | only UDP to PORT
    bytes                              answers "<bytes carried> <of them RoCE> <frames dropped on purpose>"
"""


class Cable:
    def __init__(self, switch, folder):
        self._switch = switch
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def serve(self):
        """Answers what was asked since the last call. The answer stands before the question goes: the guest waits for that."""
        for question in sorted(self._folder.glob("*.ask")):
            answer = self._answer(question.read_text().split())
            question.with_suffix(".answer").write_text(answer + "\n")
            question.unlink()

    def _answer(self, words):
        if words == ["cut"]:
            self._switch.cut()
        elif words == ["restore"]:
            self._switch.restore()
        elif len(words) == 2 and words[0] == "drop-udp" and words[1].isdigit() and int(words[1]) < 65536:
            self._switch.drop_udp(int(words[1]))
        elif words == ["bytes"]:
            return f"{self._switch.carried_bytes} {self._switch.roce_bytes} {self._switch.dropped_frames}"
        else:
            return f"error: unknown request {' '.join(words)!r}: cut, restore, drop-udp PORT or bytes"
        return "ok"
