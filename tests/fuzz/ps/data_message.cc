// The small messages of a data connection. Both ends parse them before the peer has proven anything.
#include <google/protobuf/stubs/logging.h>

#include "base/check.h"
#include "ps/protocol/control.pb.h"
#include "tests/fuzz/fuzz.h"
#include "transport/shm/wire.h"
#include "transport/tcp/memory_region.h"

namespace {

/// Connections import the keys as they are.
void try_keys(const gradrail::ps::proto::JoinPath& path) {
  for (const std::string* key : {&path.parameters_key(), &path.gradients_key(), &path.returns_key()}) {
    const auto tcp = gradrail::transport::tcp::RegionKey::parse(*key);
    GRADRAIL_CHECK(!tcp.ok() || tcp->encode() == *key);
    const auto shm = gradrail::transport::shm::decode_key(*key);
    GRADRAIL_CHECK(!shm || gradrail::transport::shm::encode(*shm) == *key);
  }
}

template <typename Message>
void try_message(const uint8_t* data, size_t bytes) {
  Message message;
  if (!message.ParseFromArray(data, static_cast<int>(bytes))) return;
  // The memory is bounded by the message, and a peer of this version reads the same.
  GRADRAIL_CHECK(message.SpaceUsedLong() < 64 * bytes + 4096);
  Message again;
  const std::string written = message.SerializeAsString();
  GRADRAIL_CHECK(again.ParseFromString(written) && again.SerializeAsString() == written);
  GRADRAIL_CHECK(again.kind_case() == message.kind_case());
  if constexpr (std::is_same_v<Message, gradrail::ps::proto::ToShard>) try_keys(message.join_path());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  static const google::protobuf::LogSilencer kSilence;
  try_message<gradrail::ps::proto::ToShard>(data, bytes);
  try_message<gradrail::ps::proto::ToWorker>(data, bytes);
  return 0;
}
