#pragma once

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "google/protobuf/message_lite.h"
#include "ps/call_proof.h"
#include "ps/control.grpc.pb.h"

namespace gradrail::ps {

// A call of the control plane: the request travels as a stream of parts, because gRPC hands such a call over when it
// has begun, so that nothing is read of one that was not found good, and nobody waits for the rest of it.

/// What a ps reads at once, at the most.
inline constexpr size_t kMaxMessageBytes = 64 << 10;

/// gRPC metadata that proofs travel in, and the question of who has none yet.
inline constexpr char kProofMetadata[] = "gradrail-proof-bin";
inline constexpr char kQuestionMetadata[] = "gradrail-question-bin";

void set_deadline(grpc::ClientContext& context, Duration patience);
/// Where the job has a secret.
void add_proof(grpc::ClientContext& context, CallProver& prover, const char* method);

std::vector<proto::Part> parts_of(const google::protobuf::MessageLite& message);
/// Errors  INVALID_ARGUMENT: too long, cut off, or no such message.
absl::Status read_parts(grpc::ServerReader<proto::Part>& reader, google::protobuf::MessageLite& message);

template <typename Reply>
using Method = std::unique_ptr<grpc::ClientWriter<proto::Part>> (proto::Control::Stub::*)(grpc::ClientContext*, Reply*);

template <typename Reply>
grpc::Status call(proto::Control::Stub& stub, Method<Reply> method, grpc::ClientContext& context,
                  const google::protobuf::MessageLite& request, Reply& reply) {
  const auto writer = (stub.*method)(&context, &reply);
  for (const proto::Part& part : parts_of(request)) {
    if (!writer->Write(part)) break;  // Finish() says why
  }
  writer->WritesDone();
  return writer->Finish();
}

/// The same by a link that has been introduced.
template <typename Reply>
grpc::Status call(proto::Control::Stub& stub, CallProver& prover, Method<Reply> method, const char* name,
                  Duration patience, const google::protobuf::MessageLite& request, Reply& reply) {
  grpc::ClientContext context;
  set_deadline(context, patience);
  add_proof(context, prover, name);
  return call(stub, method, context, request, reply);
}

/// The first call of a link, by which both sides show that they know the secret; sets the prover up. `patience` for
/// each of its two halves.
grpc::Status introduce(proto::Control::Stub& stub, CallProver& prover, Duration patience, proto::DescribeReply& reply);

}  // namespace gradrail::ps
