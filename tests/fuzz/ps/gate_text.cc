// Requests and answers at the gate, before a peer has proven anything.
#include "ps/admission/gate_text.h"

#include "base/check.h"
#include "base/status.h"
#include "ps/admission/connection_proof.h"
#include "tests/fuzz/fuzz.h"

namespace gradrail::ps {
namespace {

constexpr char kSecret[] = "a secret that no input has";

void try_request(std::string_view text) {
  static ConnectionChecker checker(kSecret);
  if (is_whole_request(text)) GRADRAIL_CHECK(text.size() >= 4);
  const absl::StatusOr<GateRequest> request = parse_gate_request(text);
  if (!request.ok()) {
    const bool unknown = absl::IsNotFound(request.status());
    return fuzz::check_refusal(request.status(),
                               unknown ? absl::StatusCode::kNotFound : absl::StatusCode::kUnauthenticated, "");
  }
  // A request in pieces is not closed before its end.
  GRADRAIL_CHECK(!request->is_connect || may_become_request("CONNECT "));
  GRADRAIL_CHECK(request->value.size() <= text.size());
  if (!request->is_connect) return;
  const absl::Status admitted = checker.check(request->value);
  GRADRAIL_CHECK(absl::IsUnauthenticated(admitted));
  GRADRAIL_CHECK(fuzz::is_printable(message_of(admitted)));
}

void try_answer(std::string_view text) {
  const absl::StatusOr<GateAnswer> answer = parse_gate_answer(text);
  if (!answer.ok()) return fuzz::check_refusal(answer.status(), absl::StatusCode::kFailedPrecondition, "the process");
  GRADRAIL_CHECK(answer->challenge.size() + answer->answer.size() <= text.size());
  const absl::StatusOr<GateAnswer> again = parse_gate_answer(gate_response("200 OK", gate_answer_body(*answer)));
  GRADRAIL_CHECK(again.ok() && again->challenge == answer->challenge && again->answer == answer->answer);
  // A server without the secret gets no proof, and a server with one is not taken for a server without.
  GRADRAIL_CHECK(!prove_connection(kSecret, "client", answer->challenge, answer->answer).ok());
  const absl::StatusOr<std::string> open = prove_connection("", "client", answer->challenge, answer->answer);
  GRADRAIL_CHECK(open.ok() == answer->challenge.empty());
}

}  // namespace
}  // namespace gradrail::ps

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace gradrail;
  using namespace gradrail::ps;
  const std::string_view text = gradrail::fuzz::text_of(data, std::min(bytes, kMaxGateTextBytes));
  try_request(text);
  try_answer(text);
  // The beginning of each request that the gate accepts may become one.
  if (is_whole_request(text) && parse_gate_request(text).ok() && may_become_request(text))
    GRADRAIL_CHECK(may_become_request(text.substr(0, text.size() / 2)));
  return 0;
}
