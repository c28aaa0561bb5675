#include <cstring>

#include "base/status.h"
#include "conformance/pattern.h"
#include "conformance/target.h"
#include "fmt/format.h"

namespace gradrail::conformance {
namespace {

constexpr size_t kRegionBytes = 8192;
constexpr uint64_t kStolen = 666;  // the immediate of every attack: must never be announced

/// Regions of the memory's owner, as the attacker sees them.
struct Keys {
  std::string readable, writable, local, destroyed, foreign;
};

struct Attack {
  std::string name;
  std::string key;
  bool is_get = false;
  uint64_t offset = 0;
  size_t bytes = 64;
};

void add_both(std::vector<Attack>& attacks, Attack attack, const Keys& keys) {
  attack.key = keys.writable;
  attack.is_get = false;
  attacks.push_back(attack);
  attack.key = keys.readable;
  attack.is_get = true;
  attacks.push_back(attack);
}

std::vector<Attack> bounds_attacks(const Keys& keys) {
  std::vector<Attack> attacks;
  for (const auto& [offset, bytes] :
       std::vector<std::pair<uint64_t, size_t>>{{kRegionBytes, 1},
                                                {kRegionBytes - 1, 2},
                                                {0, kRegionBytes + 1},
                                                {0, kMiB},
                                                {1, kRegionBytes},
                                                {uint64_t{1} << 20, 64},
                                                {uint64_t{1} << 32, 64},
                                                {uint64_t{1} << 63, 64},
                                                {UINT64_MAX, 1},
                                                {UINT64_MAX, 2},
                                                {UINT64_MAX - 63, 64},
                                                {UINT64_MAX - 31, 64},
                                                {UINT64_MAX - kRegionBytes + 1, kRegionBytes}}) {
    add_both(attacks, {.name = fmt::format("{} bytes at {}", bytes, offset), .offset = offset, .bytes = bytes}, keys);
  }
  return attacks;
}

std::vector<Attack> rights_attacks(const Keys& keys) {
  return {{.name = "put without right to write", .key = keys.readable},
          {.name = "get without right to read", .key = keys.writable, .is_get = true},
          {.name = "put into local region", .key = keys.local},
          {.name = "get from local region", .key = keys.local, .is_get = true}};
}

std::vector<Attack> key_attacks(const Keys& keys) {
  std::vector<Attack> attacks;
  for (const bool is_get : {false, true}) {
    attacks.push_back({.name = "destroyed region", .key = keys.destroyed, .is_get = is_get});
    attacks.push_back({.name = "region of another context", .key = keys.foreign, .is_get = is_get});
    attacks.push_back({.name = "empty key", .key = "", .is_get = is_get});
    attacks.push_back({.name = "garbage", .key = std::string(64, '\x5a'), .is_get = is_get});
    attacks.push_back({.name = "zeros", .key = std::string(keys.writable.size(), '\0'), .is_get = is_get});
    attacks.push_back({.name = "ones", .key = std::string(keys.writable.size(), '\xff'), .is_get = is_get});
    attacks.push_back({.name = "very long", .key = std::string(100'000, 'k'), .is_get = is_get});
  }
  for (size_t i = 0; i < keys.writable.size(); ++i) {
    for (const char flip : {'\x01', '\x80'}) {
      std::string key = keys.writable;
      key[i] = static_cast<char>(key[i] ^ flip);
      // A flip may turn one region's key into another's; such a key is refused or opens what it may open anyway.
      if (key == keys.readable || key == keys.local) continue;
      attacks.push_back({.name = fmt::format("byte {} of the key changed by {:#x}", i, flip & 0xff), .key = key});
    }
  }
  attacks.push_back({.name = "key cut short", .key = keys.writable.substr(0, keys.writable.size() - 1)});
  attacks.push_back({.name = "key too long", .key = keys.writable + '\0'});
  return attacks;
}

/// The error of import or post, or the cause of peer_lost; OK when nothing was refused.
absl::Status attempt(Side& side, Connection* connection, const Attack& attack, Buffer& local) {
  GRADRAIL_ASSIGN_OR_RETURN(const auto region, connection->import(attack.key));
  const absl::Status posted = side.post([&] {
    if (attack.is_get) return connection->get(local.slice(0, attack.bytes), {region, attack.offset}, kStolen);
    return connection->put(local.slice(0, attack.bytes), {region, attack.offset}, {.immediate = kStolen});
  });
  if (!posted.ok()) return posted;
  const auto lost = side.try_await(Kind::peer_lost, connection, std::chrono::seconds(2));
  return lost ? lost->cause : absl::OkStatus();
}

void run_attacks(Side& side, Channel& channel, const std::vector<Attack>& attacks, const std::string& address) {
  Buffer& local = side.buffer(kMiB + kRegionBytes, Access::local);
  for (const Attack& attack : attacks) {
    SCOPED_TRACE(fmt::format("{}: {}", attack.is_get ? "get" : "put", attack.name));
    std::memset(local.data(), 0x77, local.bytes());
    Connection* connection = side.connect(address);
    const absl::Status refusal = attempt(side, connection, attack, local);
    EXPECT_FALSE(refusal.ok()) << "was not refused";
    EXPECT_TRUE(refusal.ok() || !refusal.message().empty());
    EXPECT_FALSE(side.has(Kind::get_done)) << "says that it has read";
    EXPECT_TRUE(all_equal({local.data(), local.bytes()}, std::byte{0x77})) << "something was read";
    side.close(connection);
  }
  channel.send("attacks are over");
  side.serve_until_stopped(channel);
}

/// A third party: its connection is open while others attack, and must work before and after.
void stand_by(Side& side, Channel& channel) {
  const Target target = reach(side, channel);
  Buffer& source = side.buffer(64, Access::local);
  for (uint64_t i = 1; i <= 2; ++i) {
    fill_pattern({source.data(), 64}, i);
    side.put(target.connection, source.all(), {target.region, 0}, {.immediate = i, .tag = i});
    side.await(Kind::put_done);
    side.serve_until_stopped(channel);
  }
  EXPECT_FALSE(side.has(Kind::peer_lost));
}

struct Owner {
  explicit Owner(const Setup& setup)
      : side(*setup.transport),
        foreign(*setup.transport),
        readable(side.buffer(kRegionBytes, Access::remote_read)),
        writable(side.buffer(kRegionBytes, Access::remote_write)),
        local(side.buffer(kRegionBytes, Access::local)),
        destroyed(side.buffer(kRegionBytes, Access::remote_read_write)),
        elsewhere(foreign.buffer(kRegionBytes, Access::remote_read_write)),
        third_party(side.buffer(64, Access::remote_write)) {
    uint64_t seed = 0;
    for (Buffer* buffer : all()) fill_pattern({buffer->data(), buffer->bytes()}, ++seed);
    keys = {readable.key(), writable.key(), local.key(), destroyed.key(), elsewhere.key()};
    destroyed.region.reset();  // its memory stays, so that a later write to it is visible
  }
  std::vector<Buffer*> all() { return {&readable, &writable, &local, &destroyed, &elsewhere}; }
  void expect_untouched() {
    uint64_t seed = 0;
    for (Buffer* buffer : all())
      EXPECT_TRUE(has_pattern({buffer->data(), buffer->bytes()}, ++seed)) << "region " << seed;
  }

  Side side, foreign;
  Buffer &readable, &writable, &local, &destroyed, &elsewhere, &third_party;
  Keys keys;
};

void run_against_owner(const Setup& setup, const std::function<std::vector<Attack>(const Keys&)>& attacks) {
  const auto bystander = start_peer(setup, stand_by);
  const auto attacker = start_peer(setup, [&](Side& side, Channel& channel) {
    const std::string address = channel.receive();
    Keys keys;
    for (std::string* key : {&keys.readable, &keys.writable, &keys.local, &keys.destroyed, &keys.foreign}) {
      *key = channel.receive();
    }
    run_attacks(side, channel, attacks(keys), address);
  });
  Owner owner(setup);
  const std::string address = owner.side.listen();
  bystander->channel().send(address);
  bystander->channel().send(owner.third_party.key());
  EXPECT_EQ(owner.side.await(Kind::put_arrived).immediate, 1u);
  attacker->channel().send(address);
  for (const std::string& key :
       {owner.keys.readable, owner.keys.writable, owner.keys.local, owner.keys.destroyed, owner.keys.foreign}) {
    attacker->channel().send(key);
  }
  EXPECT_EQ(owner.side.serve_until_stopped(attacker->channel()), "attacks are over");
  EXPECT_FALSE(owner.side.has(Kind::put_arrived)) << "an attack was announced";
  owner.expect_untouched();
  bystander->channel().send("again");
  EXPECT_EQ(owner.side.await(Kind::put_arrived).immediate, 2u);
  EXPECT_TRUE(has_pattern({owner.third_party.data(), 64}, 2));
  attacker->channel().send("end");
  bystander->channel().send("end");
  attacker->join();
  bystander->join();
}

TEST_P(Conformance, out_of_bounds_is_refused) { run_against_owner(GetParam(), bounds_attacks); }

TEST_P(Conformance, missing_right_is_refused) { run_against_owner(GetParam(), rights_attacks); }

TEST_P(Conformance, wrong_key_is_refused) { run_against_owner(GetParam(), key_attacks); }

// A wrong slice of one's own is a mistake and not an attack: refused at once, the connection stays.
TEST_P(Conformance, wrong_local_slice_is_invalid_and_harms_nothing) {
  const auto peer = start_peer(GetParam(), [](Side& side, Channel& channel) {
    const Target target = reach(side, channel);
    Buffer& local = side.buffer(100, Access::local);
    const auto invalid = absl::StatusCode::kInvalidArgument;
    for (const auto& [offset, bytes] : std::vector<std::pair<size_t, size_t>>{
             {0, 101}, {100, 1}, {99, 2}, {SIZE_MAX, 1}, {SIZE_MAX - 9, 10}, {1, SIZE_MAX}, {50, SIZE_MAX - 20}}) {
      SCOPED_TRACE(fmt::format("{} bytes at {}", bytes, offset));
      const auto slice = local.slice(offset, bytes);
      EXPECT_EQ(side.post([&] { return target.connection->put(slice, {target.region, 0}, {}); }).code(), invalid);
      EXPECT_EQ(side.post([&] { return target.connection->get(slice, {target.region, 0}, 1); }).code(), invalid);
    }
    const auto never_imported = static_cast<RemoteRegion>(12'345);
    EXPECT_EQ(side.post([&] { return target.connection->put(local.all(), {never_imported, 0}, {}); }).code(), invalid);
    side.put(target.connection, local.all(), {target.region, 0}, {.immediate = 1});
    side.serve_until_stopped(channel);
  });
  Side side(*GetParam().transport);
  announce(side, *peer, side.buffer(100, Access::remote_read_write));
  EXPECT_EQ(side.await(Kind::put_arrived).immediate, 1u);
  peer->channel().send("end");
  peer->join();
}

}  // namespace
}  // namespace gradrail::conformance
