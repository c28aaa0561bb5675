"""Fragments of a model and weights of gradients, through the Python package."""
import unittest

import package

MISUSE = """
SHAPES = {"a": 3, "b": 4}

def refused(kind, words, function, *arguments, **named):
    try:
        function(*arguments, **named)
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"not refused: {words}")

E, F = gradrail.InvalidArgument, gradrail.FailedPrecondition
for words, fragments in (
        ("fragments: must map names to names of tensors, not list", ["a"]),
        ("fragment 'x': there is no tensor 'c'", {"x": ["a", "c"]}),
        ("fragment 'x': has no tensors", {"x": []}),
        ("tensor 'a': is in the fragments 'x' and 'y'", {"x": ["a"], "y": ["b", "a"]}),
        ("name of a fragment: must be a text", {3: ["a"]})):
    refused(E, words, gradrail.join, SHAPES, fragments=fragments)
with gradrail.join(SHAPES, fragments={"x": ["b"]}) as client:
    refused(E, "fragment 'z': the fragments are '', 'x'", client.step, "z")
    refused(F, "exchange() before start()", client.exchange, "x")
    client.start()
    for weight in (0, -1, float("nan"), "heavy"):
        refused(E, "weight", client.set_weight, weight)
    client.exchange("x")
    refused(F, "exchange() before wait()", client.exchange, "x")
    refused(F, "before wait()", client.step)
    refused(F, "set_weight: an exchange is under way", client.set_weight, 2)
    client.step("")
    client.wait("x")
    client.ready("a")
    client.step()
    assert client.fragment_step("") == 2 and client.fragment_step("x") == 2
for call in (client.fragment_step, client.fragment_position):
    refused(F, "after leave(): join again", call, "x")
print("ended", flush=True)
"""


class FragmentsTest(package.PackageTest):
    def test_wrong_fragments_and_weights_are_refused(self):
        self.assertIn("ended", self.good_run(MISUSE, workers=1).text())


if __name__ == "__main__":
    unittest.main()
