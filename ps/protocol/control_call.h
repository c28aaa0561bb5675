#pragma once

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "google/protobuf/message_lite.h"
#include "ps/protocol/call_proof.h"
#include "ps/protocol/control.grpc.pb.h"

namespace gradrail::ps {

// A call of the control plane. Its request travels as a stream of parts, not as one message; control.proto has the
// reason.

/// Largest message that a ps reads, which bounds the memory that an unauthenticated sender can occupy.
inline constexpr size_t kMaxMessageBytes = 64 << 10;

/// gRPC metadata of a proof, and of the client challenge of a caller that has no challenge of the ps yet. The second
/// key has the former name of the client challenge.
inline constexpr char kProofMetadata[] = "gradrail-proof-bin";
inline constexpr char kClientChallengeMetadata[] = "gradrail-question-bin";

void set_deadline(grpc::ClientContext& context, Duration timeout);
/// Adds the proof for one call; nothing if the job has no secret.
void add_proof(grpc::ClientContext& context, CallProver& prover, const char* method);

std::vector<proto::Part> parts_of(const google::protobuf::MessageLite& message);
/// Errors  INVALID_ARGUMENT: too long, incomplete, or not such a message.
absl::Status read_parts(grpc::ServerReader<proto::Part>& reader, google::protobuf::MessageLite& message);

template <typename Reply>
using Method = std::unique_ptr<grpc::ClientWriter<proto::Part>> (proto::Control::Stub::*)(grpc::ClientContext*, Reply*);

template <typename Reply>
grpc::Status call(proto::Control::Stub& stub, Method<Reply> method, grpc::ClientContext& context,
                  const google::protobuf::MessageLite& request, Reply& reply) {
  const auto writer = (stub.*method)(&context, &reply);
  for (const proto::Part& part : parts_of(request)) {
    if (!writer->Write(part)) break;  // Finish() returns the reason
  }
  writer->WritesDone();
  return writer->Finish();
}

/// A call after introduce(), with a proof.
template <typename Reply>
grpc::Status call(proto::Control::Stub& stub, CallProver& prover, Method<Reply> method, const char* name,
                  Duration timeout, const google::protobuf::MessageLite& request, Reply& reply) {
  grpc::ClientContext context;
  set_deadline(context, timeout);
  add_proof(context, prover, name);
  return call(stub, method, context, request, reply);
}

/// The first call of a link. Both sides show that they know the secret, which sets `prover` up.
/// Units  `timeout` applies to each of the two calls that this makes.
grpc::Status introduce(proto::Control::Stub& stub, CallProver& prover, Duration timeout, proto::DescribeReply& reply);

}  // namespace gradrail::ps
