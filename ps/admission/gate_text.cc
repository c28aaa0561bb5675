#include "ps/admission/gate_text.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "fmt/format.h"

namespace gradrail::ps {
namespace {

// Debian's absl has its own string_view.
absl::string_view as_absl(std::string_view text) { return {text.data(), text.size()}; }

/// The value of a header; "": the request has none. Names of headers have no case.
absl::string_view header(absl::string_view request, absl::string_view name) {
  for (const absl::string_view line : absl::StrSplit(request, "\r\n")) {
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (absl::EqualsIgnoreCase(parts.first, name)) return absl::StripAsciiWhitespace(parts.second);
  }
  return "";
}

}  // namespace

bool may_become_request(std::string_view begin) {
  const auto is_common = [begin](std::string_view start) {
    const size_t common = std::min(begin.size(), start.size());
    return begin.substr(0, common) == start.substr(0, common);
  };
  return is_common("CONNECT ") || is_common("GET /");
}

bool is_whole_request(std::string_view text) { return text.ends_with("\r\n\r\n"); }

absl::StatusOr<GateRequest> parse_gate_request(std::string_view text) {
  const absl::string_view request = as_absl(text);
  const std::vector<absl::string_view> words = absl::StrSplit(request.substr(0, request.find("\r\n")), ' ');
  // A text without an address has no word, not even an empty one.
  GateRequest parsed{.is_connect = !words.empty() && words[0] == "CONNECT", .value = ""};
  if (parsed.is_connect) {
    if (absl::WebSafeBase64Unescape(header(request, kProofHeader), &parsed.value)) return parsed;
    return absl::UnauthenticatedError("the proof is not base64");
  }
  absl::string_view path = words.size() > 1 ? words[1] : "";
  if (absl::ConsumePrefix(&path, kChallengePath) && absl::WebSafeBase64Unescape(path, &parsed.value)) return parsed;
  return absl::NotFoundError("this port belongs to gradrail");
}

absl::StatusOr<GateAnswer> parse_gate_answer(std::string_view response) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(as_absl(response), absl::MaxSplits("\r\n\r\n", 1));
  const std::vector<absl::string_view> words = absl::StrSplit(absl::StripSuffix(parts.second, "\n"), ' ');
  GateAnswer parsed;
  if (absl::StartsWith(parts.first, "HTTP/1.1 200 ") && words.size() == 2 &&
      absl::WebSafeBase64Unescape(words[0], &parsed.challenge) &&
      absl::WebSafeBase64Unescape(words[1], &parsed.answer)) {
    return parsed;
  }
  return absl::FailedPreconditionError(
      "the process there is not a task of this release of gradrail (is the address right, do all tasks have one "
      "release?)");
}

std::string gate_response(std::string_view status, std::string_view body) {
  return fmt::format("HTTP/1.1 {}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
                     status, body.size(), body);
}

std::string gate_answer_body(const GateAnswer& answer) {
  return fmt::format("{} {}\n", absl::WebSafeBase64Escape(answer.challenge), absl::WebSafeBase64Escape(answer.answer));
}

}  // namespace gradrail::ps
