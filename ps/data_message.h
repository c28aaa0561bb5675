#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "google/protobuf/message_lite.h"
#include "transport/connection.h"

namespace gradrail::ps {

/// A ToShard or ToWorker as a small message of its data connection. Errors  as those of Connection::send().
inline absl::Status send_message(transport::Connection& connection, const google::protobuf::MessageLite& message) {
  const std::string bytes = message.SerializeAsString();
  return connection.send(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()));
}

}  // namespace gradrail::ps
