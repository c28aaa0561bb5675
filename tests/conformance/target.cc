#include "conformance/target.h"

namespace gradrail::conformance {

Target reach(Side& side, Channel& channel) {
  Connection* connection = side.connect(channel.receive());
  const auto region = connection->import(channel.receive());
  if (!region.ok()) throw Broken("import: " + region.status().ToString());
  return {connection, *region};
}

void announce(Side& side, Peer& peer, const Buffer& target) {
  peer.channel().send(side.listen());
  peer.channel().send(target.key());
}

}  // namespace gradrail::conformance
