#pragma once

#include "absl/status/status.h"
#include "transport/connection.h"

namespace google::protobuf {
class MessageLite;
}

namespace gradrail::ps {

/// Sends a ToShard or ToWorker as a small message of its data connection.
/// Units   at most Capabilities::max_message_bytes after serialization.
/// Errors  Those of Connection::send().
absl::Status send_message(transport::Connection& connection, const google::protobuf::MessageLite& message);

}  // namespace gradrail::ps
