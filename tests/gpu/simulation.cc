#include "tests/gpu/simulation.h"

#include <dlfcn.h>

#include <cstdlib>

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

SimulatedObjects Simulation::objects() {
  SimulatedObjects objects;
  find<decltype(&gradrail_simulated_objects)>("gradrail_simulated_objects")(&objects);
  return objects;
}

}  // namespace gradrail::gpu
