#include "ps/protocol/data_message.h"

#include <cstddef>
#include <string>

#include "absl/types/span.h"
#include "google/protobuf/message_lite.h"

namespace gradrail::ps {

absl::Status send_message(transport::Connection& connection, const google::protobuf::MessageLite& message) {
  const std::string bytes = message.SerializeAsString();  // send() copies: the string need not outlive the call
  return connection.send(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()));
}

}  // namespace gradrail::ps
