"""Serves the requests of the guests to the cable. The command `cable` in a guest (guest/cable) writes a request file.

    cut | restore | drop-udp PORT      drops all frames | drops none | drops only UDP frames to PORT
    pull ROLE | plug ROLE              removes | restores the carrier of one guest; a cut does not change the carrier
    bytes                              answers "<bytes carried> <bytes of RoCE> <frames dropped on purpose>"
"""


class Cable:
    def __init__(self, switch, folder, plugs):
        """`plugs` has one function per guest; its argument states whether the cable is plugged in."""
        self._switch = switch
        self._plugs = plugs
        self._pulled = set()
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def serve(self):
        """Answers all requests since the last call. A guest waits until its request file is removed, so the answer is
        written first."""
        for question in sorted(self._folder.glob("*.ask")):
            answer = self._answer(question.read_text().split())
            question.with_suffix(".answer").write_text(answer + "\n")
            question.unlink()

    def repair(self):
        """Restores the initial state: the cable carries all frames."""
        self._switch.restore()
        for role in sorted(self._pulled):
            self._plugs[role](True)
        self._pulled.clear()

    def _answer(self, words):
        if words == ["cut"]:
            self._switch.cut()
        elif words == ["restore"]:
            self._switch.restore()
        elif len(words) == 2 and words[0] == "drop-udp" and words[1].isdigit() and int(words[1]) < 65536:
            self._switch.drop_udp(int(words[1]))
        elif len(words) == 2 and words[0] in ("pull", "plug") and words[1] in map(str, range(len(self._plugs))):
            role = int(words[1])
            self._plugs[role](words[0] == "plug")
            (self._pulled.add if words[0] == "pull" else self._pulled.discard)(role)
        elif words == ["bytes"]:
            return f"{self._switch.carried_bytes} {self._switch.roce_bytes} {self._switch.dropped_frames}"
        else:
            return f"error: unknown request {' '.join(words)!r}: cut, restore, drop-udp PORT, pull ROLE, plug ROLE or bytes"
        return "ok"
