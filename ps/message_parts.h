#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "google/protobuf/message_lite.h"
#include "ps/control.pb.h"

namespace gradrail::ps {

/// What a ps reads of a message before it knows from whom it is: those that may be longer come in parts, of which none
/// is read before the call was found good.
inline constexpr size_t kMaxMessageBytes = 64 << 10;
inline constexpr size_t kPartBytes = 48 << 10;
/// A schema of a million tensors.
inline constexpr size_t kMaxWholeBytes = 64 << 20;

/// `writer`: of a call of gRPC. False: the call is over.
template <typename Writer>
bool write_parts(Writer& writer, const google::protobuf::MessageLite& message) {
  const std::string bytes = message.SerializeAsString();
  for (size_t first = 0; first < bytes.size(); first += kPartBytes) {
    proto::Part part;
    part.set_bytes(bytes.substr(first, kPartBytes));
    if (!writer.Write(part)) return false;
  }
  return writer.WritesDone();
}

/// Errors  INVALID_ARGUMENT: too long, or no such message.
template <typename Reader>
absl::Status read_parts(Reader& reader, google::protobuf::MessageLite& message) {
  std::string bytes;
  proto::Part part;
  while (reader.Read(&part)) {
    if (bytes.size() + part.bytes().size() > kMaxWholeBytes)
      return absl::InvalidArgumentError(fmt::format("a message of more than {} MiB", kMaxWholeBytes >> 20));
    bytes += part.bytes();
  }
  return message.ParseFromString(bytes) ? absl::OkStatus() : absl::InvalidArgumentError("this is no such message");
}

}  // namespace gradrail::ps
