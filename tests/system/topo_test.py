"""Tests `gradrail topo`: the drawing and the plan of recorded machines, and the errors of invalid input."""
import json
import os
import tempfile
import unittest
import xml.etree.ElementTree as xml

import cluster


def cpuset(first, count):
    return hex((1 << count) - 1 << first)


def package(number, cores, devices):
    """Returns hwloc XML of a package of single-threaded cores, with one NUMA node and a PCI root with a switch."""
    first = number * cores
    sets = lambda mask: (f'cpuset="{mask}" complete_cpuset="{mask}" nodeset="{hex(1 << number)}" '
                         f'complete_nodeset="{hex(1 << number)}"')
    text = f'<object type="Package" os_index="{number}" {sets(cpuset(first, cores))} gp_index="{100 + number}">'
    text += (f'<object type="NUMANode" os_index="{number}" {sets(cpuset(first, cores))} gp_index="{200 + number}" '
             f'local_memory="1073741824"/>')
    for core in range(first, first + cores):
        text += f'<object type="Core" os_index="{core}" {sets(cpuset(core, 1))} gp_index="{300 + core}">'
        text += f'<object type="PU" os_index="{core}" {sets(cpuset(core, 1))} gp_index="{400 + core}"/></object>'
    bus = 0x40 * (number + 1)
    bridge = lambda level, where, buses: (f'<object type="Bridge" gp_index="{1000 + 100 * number + 10 * level + where}" '
                                          f'bridge_type="{"0-1" if level == 0 else "1-1"}" depth="{level}" '
                                          f'bridge_pci="0000:[{buses}]"')
    pci = lambda busid: f' pci_busid="0000:{busid}" pci_type="0604 [1000:c010] [0000:0000] 00" pci_link_speed="31.5"'
    text += bridge(0, 0, f"{bus:02x}-{bus + 9:02x}") + ">"
    text += bridge(1, 0, f"{bus + 1:02x}-{bus + 9:02x}") + pci(f"{bus:02x}:01.0") + ">"
    text += bridge(2, 0, f"{bus + 2:02x}-{bus + 9:02x}") + pci(f"{bus + 1:02x}:00.0") + ">"
    for slot, (kind, name) in enumerate(devices):
        at = bus + 3 + slot
        text += bridge(3, slot, f"{at:02x}-{at:02x}") + pci(f"{bus + 2:02x}:{slot:02x}.0") + ">"
        code = {"gpu": "0302 [10de:20b0]", "display": "0300 [1a03:2000]", "nic": "0207 [15b3:101b]"}[kind]
        text += (f'<object type="PCIDev" gp_index="{2000 + 100 * number + slot}" pci_busid="0000:{at:02x}:00.0" '
                 f'pci_type="{code} [0000:0000] 00" pci_link_speed="31.5">')
        if kind == "nic":
            text += f'<object type="OSDev" gp_index="{3000 + 100 * number + slot}" name="ib{name}" osdev_type="2"/>'
            text += (f'<object type="OSDev" gp_index="{4000 + 100 * number + slot}" name="mlx5_{name}" osdev_type="3">'
                     f'<info name="Port1State" value="4"/></object>')
        text += "</object></object>"
    return text + "</object></object></object></object>"


def machine(cores, *packages, name="drawn"):
    every = cpuset(0, cores * len(packages))
    nodes = hex((1 << len(packages)) - 1)
    return ('<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n<topology version="2.0">'
            f'<object type="Machine" os_index="0" cpuset="{every}" complete_cpuset="{every}" allowed_cpuset="{every}" '
            f'nodeset="{nodes}" complete_nodeset="{nodes}" allowed_nodeset="{nodes}" gp_index="1">'
            f'<info name="HostName" value="{name}"/>'
            + "".join(package(number, cores, devices) for number, devices in enumerate(packages))
            + "</object></topology>\n")


TWO_OF_EACH = machine(8, [("gpu", 0), ("nic", 0)], [("nic", 1), ("gpu", 1), ("display", 0)])


class Topo(cluster.ClusterTest):
    def topo(self, *flags, says=(), code=cluster.GOOD):
        task = self.launch("topo", [cluster.binary(), "topo", *map(str, flags)])
        self.assert_ends(task, code, says=["(?m)" + words for words in says])
        return task.text()

    def saved(self, text):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "machine.xml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def test_this_machine(self):
        self.topo(says=[r"^Machine", r"^worker/0 tower 0 ", r"^ps/0 shard 0 ", r"^waiting: (spin|adapt) \("])

    def test_each_gpu_has_the_nic_of_its_switch(self):
        text = self.topo("--topology", self.saved(TWO_OF_EACH), "--explain",
                         says=[r"^worker/0 tower 0 +0 0000:43:00\.0 +mlx5_0 +same switch +0 +",
                               r"^worker/0 tower 1 +1 0000:84:00\.0 +mlx5_1 +same switch +1 +",
                               r"^GPU 0 +PIX +SYS$", r"^GPU 1 +SYS +PIX$", r"^    not mlx5_1: "])
        self.assertIn("Machine drawn", text)
        self.assertNotIn("GPU 2", text)  # the display chip is not a GPU

    def test_json_says_what_the_table_says(self):
        whole = json.loads(self.topo("--topology", self.saved(TWO_OF_EACH), "--json", "--ps", 2, "--shards", 2))
        self.assertEqual([gpu["paths"] for gpu in whole["machine"]["gpus"]],
                         [{"mlx5_0": "same switch", "mlx5_1": "across packages"},
                          {"mlx5_0": "across packages", "mlx5_1": "same switch"}])
        towers, shards = whole["placement"]["towers"], whole["placement"]["shards"]
        self.assertEqual([(t["gpu"], t["nic"], t["numa_node"]) for t in towers], [(0, "mlx5_0", 0), (1, "mlx5_1", 1)])
        self.assertEqual([(s["task_index"], s["shard"]) for s in shards], [(0, 0), (0, 1), (1, 0), (1, 1)])
        for place in towers + shards:
            self.assertTrue(place["cpus"])
            self.assertTrue(place["decisions"] and all(d["reason"] for d in place["decisions"]))

    def test_the_picture_is_xml_and_shows_everything(self):
        hostile = machine(2, [("gpu", 0), ("nic", 0)], name="&lt;script&gt;&amp;&quot;")
        picture = os.path.join(os.path.dirname(self.saved(hostile)), "picture.svg")
        self.topo("--topology", os.path.join(os.path.dirname(picture), "machine.xml"), "--svg", picture)
        texts = [node.text or "" for node in xml.parse(picture).iter("{http://www.w3.org/2000/svg}text")]
        for words in ("GPU 0", "NIC mlx5_0", "NUMA node 0", "worker/0 tower 0", "ps/0 shard 0", 'Machine <script>&"'):
            self.assertIn(words, texts)

    def test_the_picture_distinguishes_sixteen_workers(self):
        picture = os.path.join(os.path.dirname(self.saved(machine(2))), "picture.svg")
        self.topo("--topology", "pack:2 [numa] core:16 pu:1", "--workers", 16, "--svg", picture)
        root = xml.parse(picture).getroot()
        texts = [node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}text")]
        for worker in range(16):
            # In the legend and on the cores.
            self.assertGreater(sum(f"w{worker}.0" in text.split() for text in texts), 1, worker)
        # No text is wider than its box: 5 px are the least width of a digit of 10 px.
        cells = [float(node.get("width")) for node in root.iter("{http://www.w3.org/2000/svg}rect") if node.get("height") == "34.0"]
        self.assertGreater(min(cells), 5 * len("w15.0"))

    def test_a_description_is_a_machine(self):
        self.topo("--topology", "pack:2 [numa] core:4 pu:2", "--workers", 2,
                  says=[r"Package 1", r"NUMA node 1", r"^worker/1 tower 0 "])

    def test_required_rdma_decides_the_exit_code(self):
        self.topo("--topology", self.saved(TWO_OF_EACH), "--require", "rdma")
        for topology in (self.saved(machine(2, [("gpu", 0)])), "pack:1 core:4 pu:1"):
            self.topo("--topology", topology)
            self.topo("--topology", topology, "--require", "rdma", code=cluster.CONFIGURATION,
                      says=[r"^gradrail: --require rdma: worker/0 tower 0 has no NIC with RDMA; `gradrail doctor"])

    def test_what_is_not_there_is_named(self):
        saved = self.saved(TWO_OF_EACH)
        for flags, says in ((("--gpu", 7), r"--gpu.* 7"), (("--nic", "mlx5_9"), r"--nic.*mlx5_9"),
                            (("--cores", "99"), r"--cores.*99"),
                            (("--towers", 9, "--device", "gpu"), r"9")):
            self.topo("--topology", saved, *flags, code=cluster.CONFIGURATION, says=[says])
        for flags, says in ((("--device", "tpu"), r"--device: tpu not in {auto,gpu,cpu}"),
                            (("--towers", -1), r"--towers: '-1' is not a whole number from 0 to 4096"),
                            (("--shards", 0), r"--shards: '0' is not"), (("--cores", "a-b"), r"--cores: 'a-b' is not"),
                            (("--require", "speed"), r"--require: speed not in")):
            self.topo("--topology", saved, *flags, code=cluster.USAGE, says=[says])
        self.topo("--topology", "", code=cluster.USAGE, says=[r"--topology: '' is an empty value"])
        self.topo("--svg", "/nowhere/picture.svg", code=cluster.CONFIGURATION, says=[r"--svg /nowhere/picture\.svg"])


if __name__ == "__main__":
    unittest.main()
