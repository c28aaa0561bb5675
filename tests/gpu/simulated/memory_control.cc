#include "tests/gpu/simulated/memory_control.h"

#include <sys/stat.h>

#include "tests/gpu/simulated/machine.h"

using namespace gradrail::simulated;

int gradrail_simulated_device_of(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  if (!Machine::get().memory().contains(address)) return -1;
  const auto allocation = Machine::get().memory().find(address);
  return allocation ? allocation->device->ordinal : 0;
}

ino_t gradrail_simulated_file_of(const void* data) {
  const auto allocation = Machine::get().memory().find(reinterpret_cast<uintptr_t>(data));
  struct stat file {};
  return allocation && fstat(allocation->fd, &file) == 0 ? file.st_ino : 0;
}
