#include "base/random_bits.h"

#include <sys/random.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"

namespace gradrail {

std::string random_bytes(size_t count) {
  std::string bytes(count, '\0');
  for (size_t done = 0; done < count;) {
    const ssize_t got = getrandom(bytes.data() + done, count - done, 0);
    GRADRAIL_CHECK(got > 0 || (got < 0 && errno == EINTR));  // more than 256 bytes may come in pieces
    if (got > 0) done += static_cast<size_t>(got);
  }
  return bytes;
}

uint64_t random_bits() {
  uint64_t bits = 0;
  std::memcpy(&bits, random_bytes(sizeof(bits)).data(), sizeof(bits));
  return bits;
}

}  // namespace gradrail
