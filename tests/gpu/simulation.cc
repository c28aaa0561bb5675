#include "tests/gpu/simulation.h"

#include <dlfcn.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "gpu/compute/compute.h"

namespace gradrail::gpu {
namespace {

template <typename Function>
Function find(const char* name) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, name));
}

}  // namespace

bool Simulation::is_here() { return find<void (*)()>("gradrail_simulated_configure") != nullptr; }

void Simulation::configure(const char* words) {
  find<decltype(&gradrail_simulated_configure)>("gradrail_simulated_configure")(words);
}

void Simulation::release_hang() {
  find<decltype(&gradrail_simulated_release_hang)>("gradrail_simulated_release_hang")();
}

void Simulation::release_hang_when_reached() {
  while (!hangs()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  release_hang();
}

bool Simulation::hangs() { return find<decltype(&gradrail_simulated_hangs)>("gradrail_simulated_hangs")() != 0; }

SimulatedObjects Simulation::objects() {
  SimulatedObjects objects;
  find<decltype(&gradrail_simulated_objects)>("gradrail_simulated_objects")(&objects);
  return objects;
}

bool Simulation::tolerates(const absl::Status& no_device) {
  if (is_here()) return false;
  const char* required = std::getenv("GRADRAIL_REQUIRE");
  const bool is_required = required != nullptr && std::strstr(required, "gpu") != nullptr;
  // With one GPU, tests of several skip all the same.
  return !is_required || (absl::IsNotFound(no_device) && open_device(0).ok());
}

}  // namespace gradrail::gpu
