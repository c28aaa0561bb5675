#include "ps/protocol/control_call.h"

#include <chrono>
#include <string>

#include "base/check.h"
#include "fmt/format.h"
#include "ps/protocol/control_status.h"
#include "ps/protocol/training.h"

namespace gradrail::ps {
namespace {

/// Below kMaxMessageBytes, with room for the frame.
constexpr size_t kPartBytes = 48 << 10;
static_assert(kPartBytes < kMaxMessageBytes);
/// Enough for a schema of a million tensors. Only callers with a proof get that far.
constexpr size_t kMaxWholeBytes = 64 << 20;

}  // namespace

void set_deadline(grpc::ClientContext& context, Duration timeout) {
  // gRPC takes deadlines of the system clock.
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::duration_cast<std::chrono::milliseconds>(timeout));
}

void add_proof(grpc::ClientContext& context, CallProver& prover, const char* method) {
  if (const std::string proof = prover.proof_of(method); !proof.empty()) context.AddMetadata(kProofMetadata, proof);
}

grpc::Status introduce(proto::Control::Stub& stub, CallProver& prover, Duration timeout, proto::DescribeReply& reply) {
  proto::DescribeRequest request;
  request.set_protocol_version(kProtocolVersion);
  grpc::ClientContext context;
  set_deadline(context, timeout);
  // Metadata arrive before the parts of the request, so that the ps can answer without them.
  context.AddMetadata(kClientChallengeMetadata, prover.client_challenge());
  reply.Clear();
  grpc::Status status = call(stub, &proto::Control::Stub::Describe, context, request, reply);
  if (!status.ok()) return status;
  // The ps proves itself first: a process without the secret receives no proof of this side.
  if (const absl::Status known = prover.set_up(reply.challenge(), reply.answer()); !known.ok()) return to_grpc(known);
  if (reply.challenge().empty()) return status;  // the job has no secret: this reply is complete
  reply.Clear();
  // The first reply has the challenge only; the description is for callers with a proof.
  return call(stub, prover, &proto::Control::Stub::Describe, "Describe", timeout, request, reply);
}

std::vector<proto::Part> parts_of(const google::protobuf::MessageLite& message) {
  const std::string bytes = message.SerializeAsString();  // a copy, which is small beside the parameters
  std::vector<proto::Part> parts;
  for (size_t first = 0; parts.empty() || first < bytes.size(); first += kPartBytes)
    parts.emplace_back().set_bytes(bytes.substr(first, kPartBytes));
  GRADRAIL_CHECK(!parts.empty());  // an empty message is one empty part
  parts.back().set_last(true);
  return parts;
}

absl::Status read_parts(grpc::ServerReader<proto::Part>& reader, google::protobuf::MessageLite& message) {
  std::string bytes;
  proto::Part part;
  // Without the mark of the last part a broken stream would look like a complete request.
  while (!part.last()) {
    if (!reader.Read(&part)) return absl::InvalidArgumentError("the request was cut off");
    // Before the copy: a peer must not make the ps allocate more.
    if (bytes.size() + part.bytes().size() > kMaxWholeBytes)
      return absl::InvalidArgumentError(fmt::format("a message of more than {} MiB", kMaxWholeBytes >> 20));
    bytes += part.bytes();
  }
  return message.ParseFromString(bytes) ? absl::OkStatus() : absl::InvalidArgumentError("the message cannot be parsed");
}

}  // namespace gradrail::ps
