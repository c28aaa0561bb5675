#include "transport/shm/connection.h"

#include <unistd.h>

#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/status.h"
#include "fmt/format.h"

namespace gradrail::transport::shm {
namespace {

/// Packets handled per look at a socket: a peer that floods it must not starve the others.
constexpr int kPacketsPerLook = 64;

Ring* produced_ring(const Mapping& rings, ConnectionParts::Side side) {
  GRADRAIL_CHECK(rings.bytes() >= sizeof(RingPair));
  auto* pair = reinterpret_cast<RingPair*>(rings.data());
  return side == ConnectionParts::Side::connector ? &pair->from_connector : &pair->from_acceptor;
}

Ring* consumed_ring(const Mapping& rings, ConnectionParts::Side side) {
  auto* pair = reinterpret_cast<RingPair*>(rings.data());
  return side == ConnectionParts::Side::connector ? &pair->from_acceptor : &pair->from_connector;
}

}  // namespace

ShmConnection::ShmConnection(ConnectionParts parts)
    : side_(parts.side),
      rings_(std::move(parts.rings)),
      regions_(parts.regions),
      rate_limited_log_(*parts.log),
      peer_pid_(parts.peer_pid),
      address_(std::move(parts.address)),
      producer_(produced_ring(rings_, side_)),
      consumer_(consumed_ring(rings_, side_)),
      channel_(std::move(parts.channel)),
      peer_bell_(std::move(parts.peer_bell)) {
  // The welcome, which brings the bell to a connector, has not arrived yet.
  GRADRAIL_CHECK(static_cast<bool>(peer_bell_) == (side_ == ConnectionParts::Side::acceptor));
  // The connector receives its connection as the result of connect() instead.
  if (side_ == ConnectionParts::Side::acceptor) local_.push_back({.kind = Completion::Kind::connected});
}

std::string ShmConnection::describe() const {
  const bool connector = side_ == ConnectionParts::Side::connector;
  return fmt::format("shm pid {} {} pid {} at {}", getpid(), connector ? ">" : "<", peer_pid_, address_);
}

absl::StatusOr<RemoteRegion> ShmConnection::import(std::string_view key_bytes) {
  const std::optional<RegionKey> key = decode_key(key_bytes);
  if (!key) return absl::InvalidArgumentError("shm: not a region key of this transport and version");
  for (size_t i = 0; i < imported_.size(); ++i) {
    if (imported_[i].key == *key) return RemoteRegion(i);
  }
  if (!cause_.ok()) return lost_error();
  // No peer requests a local region: every post to it is refused here.
  if (key->access != static_cast<uint8_t>(Access::local)) GRADRAIL_RETURN_IF_ERROR(request(*key));
  imported_.push_back({.key = *key, .mapping = {}});
  return RemoteRegion(imported_.size() - 1);
}

absl::Status ShmConnection::request(const RegionKey& key) {
  ControlMessage fetch;
  fetch.kind = ControlKind::fetch;
  fetch.key = key;
  GRADRAIL_RETURN_IF_ERROR(channel_.send(fetch, {}));
  ++regions_requested_;
  return absl::OkStatus();
}

void ShmConnection::service_channel() {
  for (int i = 0; i < kPacketsPerLook && channel_.open(); ++i) {
    absl::Status status = channel_.has_backlog() ? channel_.send_backlog() : absl::OkStatus();
    // The peer has not read its answers. No further request is read until they have left, which bounds the backlog.
    if (status.ok() && channel_.has_backlog()) return;
    absl::StatusOr<Packet> packet = status.ok() ? channel_.receive() : absl::StatusOr<Packet>(status);
    if (!packet.ok()) return refuse(packet.status(), Drain::no);
    if (packet->kind == Packet::Kind::nothing) return;
    if (packet->kind == Packet::Kind::ended) {
      // The mapping keeps the rings after the peer has ended, so all that it published is still reported.
      return lose(absl::UnavailableError(fmt::format("shm: peer process {} ended", peer_pid_)), Drain::yes);
    }
    if (status = handle(*packet); !status.ok()) return refuse(status, Drain::no);
  }
}

absl::Status ShmConnection::handle(Packet& packet) {
  switch (packet.message.kind) {
    case ControlKind::welcome:
      return handle_welcome(packet);
    case ControlKind::fetch:
      return handle_fetch(packet.message.key);
    case ControlKind::region:
      return handle_region(packet);
    case ControlKind::disconnect:
      lose(reason_of(packet.message), Drain::yes);
      return absl::OkStatus();
    case ControlKind::hello:
      break;
  }
  return absl::InvalidArgumentError(
      fmt::format("shm: peer sent a packet of kind {} out of turn", static_cast<int>(packet.message.kind)));
}

absl::Status ShmConnection::handle_welcome(Packet& packet) {
  // Only a connector has no bell, and only until its first welcome.
  if (peer_bell_ || packet.descriptors.size() != 1) return absl::InvalidArgumentError("shm: broken welcome from peer");
  GRADRAIL_RETURN_IF_ERROR(check_bell(packet.descriptors[0].get()));
  peer_bell_ = std::move(packet.descriptors[0]);
  wake_peer();  // wakes it for earlier posts without a bell
  return absl::OkStatus();
}

absl::Status ShmConnection::handle_fetch(const RegionKey& key) {
  GRADRAIL_ASSIGN_OR_RETURN(int fd, find_descriptor(*regions_, key));
  if (allows(static_cast<Access>(key.access), Access::remote_write)) return answer_fetch(key, fd);
  // The kernel enforces the right: a file that is open for reading alone cannot be mapped for writing.
  GRADRAIL_ASSIGN_OR_RETURN(FileDescriptor read_only, reopen_read_only(fd));
  return answer_fetch(key, read_only.get());
}

absl::Status ShmConnection::answer_fetch(const RegionKey& key, int fd) {
  ControlMessage answer;
  answer.kind = ControlKind::region;
  answer.key = key;
  return channel_.send(answer, {&fd, 1});
}

absl::Status ShmConnection::handle_region(Packet& packet) {
  for (ImportedRegion& region : imported_) {
    if (!(region.key == packet.message.key) || region.data() != nullptr) continue;
    // import() requests no local region, so an answer would decrease a count that is 0.
    if (region.access() == Access::local) continue;
    if (packet.descriptors.size() != 1) break;
    const bool writable = allows(region.access(), Access::remote_write);
    GRADRAIL_ASSIGN_OR_RETURN(region.mapping,
                              Mapping::map_sealed(packet.descriptors[0].get(), region.key.bytes,
                                                  writable ? Mapping::Mode::read_write : Mapping::Mode::read));
    GRADRAIL_CHECK(regions_requested_ > 0);
    --regions_requested_;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("shm: peer sent a region that was not requested");
}

void ShmConnection::refuse(const absl::Status& why, Drain drain) {
  rate_limited_log_.write(fmt::format("{}: connection ended: {}", describe(), why.ToString()));
  channel_.close_with(why);
  lose(why, drain);
}

void ShmConnection::lose(absl::Status cause, Drain drain) {
  if (!cause_.ok()) return;
  GRADRAIL_CHECK(!cause.ok());  // an OK cause would make the connection usable again
  channel_.close();
  cause_ = std::move(cause);
  drain_ = drain == Drain::yes;
}

absl::Status ShmConnection::lost_error() const {
  return absl::UnavailableError(fmt::format("shm: peer lost: {}", std::string(cause_.message())));
}

void ShmConnection::send_disconnect() {
  channel_.close_with(absl::UnavailableError(fmt::format("shm: peer closed (process {})", getpid())));
}

}  // namespace gradrail::transport::shm
