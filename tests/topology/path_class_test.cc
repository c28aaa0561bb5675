#include "gtest/gtest.h"
#include "topology/machine.h"

namespace gradrail::topology {
namespace {

/// Host bridge 0 has a root port (1) and a switch below it (2). The switch has downstream ports 3 and 4, and below 4 a
/// second switch 5 with ports 6 and 7. Host bridge 0 has another root port (8). Host bridge 9 has root port 10.
Machine tree() {
  Machine machine;
  const int parents[] = {-1, 0, 1, 2, 2, 4, 5, 5, 0, -1, 9};
  for (const int parent : parents) machine.bridges.push_back({.parent = parent, .host = parent < 0});
  return machine;
}

PathClass between(int a, int b) { return path_class(tree(), {.bridge = a}, {.bridge = b}); }

TEST(PathClass, OneSwitch) {
  EXPECT_EQ(between(3, 3), PathClass::same_switch);  // two functions of one card
  EXPECT_EQ(between(3, 4), PathClass::same_switch);
  EXPECT_EQ(between(6, 7), PathClass::same_switch);
}

TEST(PathClass, SeveralSwitchesOfOneRootPort) {
  EXPECT_EQ(between(3, 6), PathClass::same_root_port);
  EXPECT_EQ(between(6, 3), PathClass::same_root_port);
}

TEST(PathClass, RootPortsOfOneRoot) {
  EXPECT_EQ(between(3, 8), PathClass::same_root);
  EXPECT_EQ(between(0, 7), PathClass::same_root);  // integrated into the root
}

TEST(PathClass, RootsOfOneNodeOrPackage) {
  const Machine machine = tree();
  const PciPlace a{.bridge = 3, .numa_node = 0, .package = 0};
  EXPECT_EQ(path_class(machine, a, {.bridge = 10, .numa_node = 0, .package = 0}), PathClass::same_numa_node);
  EXPECT_EQ(path_class(machine, a, {.bridge = 10, .numa_node = 1, .package = 0}), PathClass::same_package);
  EXPECT_EQ(path_class(machine, a, {.bridge = 10, .numa_node = 2, .package = 1}), PathClass::across);
}

TEST(PathClass, UnknownPlacesAreFar) {
  EXPECT_EQ(between(3, 10), PathClass::unknown);
  EXPECT_EQ(between(-1, -1), PathClass::unknown);
}

}  // namespace
}  // namespace gradrail::topology
