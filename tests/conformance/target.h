#pragma once

#include "conformance/peer.h"

namespace gradrail::conformance {

constexpr size_t kKiB = 1024;
constexpr size_t kMiB = 1024 * kKiB;

/// The sizes where implementations change their ways: words, inline limits, pages, fragments, socket buffers.
constexpr size_t kSizes[] = {0,    1,         63,        64, 65, 4 * kKiB, 64 * kKiB - 1, 64 * kKiB, 64 * kKiB + 1,
                             kMiB, 64 * kMiB, 256 * kMiB};
constexpr size_t kOdd = 4099;  // a prime above a page: neither source nor target is aligned to anything

/// A peer's region, reached from here: what most bodies begin with.
struct Target {
  Connection* connection = nullptr;
  RemoteRegion region{};
};

/// Takes address and key from the side channel, connects and imports. Throws Broken.
Target reach(Side& side, Channel& channel);
/// The other half: listens and sends its address to the peer.
void announce(Side& side, Peer& peer, const Buffer& target);

}  // namespace gradrail::conformance
