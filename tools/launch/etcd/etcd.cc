#include "tools/launch/etcd/etcd.h"

#include <charconv>

#include "absl/strings/escaping.h"
#include "base/status.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace gradrail::tools {
namespace {

using nlohmann::json;

/// Several endpoints have to have their turn before a lease of 5 s that wants to be kept is over.
constexpr Duration kOneAnswer = std::chrono::milliseconds(1500);
constexpr size_t kShownBytes = 80;

// The codes of gRPC; etcd's gateway passes the numbers on.
constexpr int kNotFound = 5, kDeadlineExceeded = 4, kResourceExhausted = 8, kUnavailable = 14;

std::string encoded(const std::string& text) { return absl::Base64Escape(text); }

std::string text_of(const json& from, const char* name) {
  const auto found = from.find(name);
  return found != from.end() && found->is_string() ? found->get<std::string>() : "";
}

std::string decoded(const json& from, const char* name) {
  std::string text;
  return absl::Base64Unescape(text_of(from, name), &text) ? text : "";
}

/// 64-bit numbers are strings in protobuf's JSON, and absent when they are 0.
std::string number_of(const json& from, const char* name) {
  const std::string text = text_of(from, name);
  return text.empty() || text.find_first_not_of("0123456789") != text.npos ? "0" : text;
}

int64_t to_int(const std::string& digits) {
  int64_t value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return value;
}

const json& part_of(const json& from, const char* name) {
  static const json nothing = json::object();
  const auto found = from.find(name);
  return found != from.end() && found->is_object() ? *found : nothing;
}

/// The first part of another process's text, fit to be shown.
std::string shown(const std::string& body) {
  std::string text = body.substr(0, kShownBytes);
  for (char& c : text) c = c >= ' ' && c <= '~' ? c : '.';
  return text.empty() ? "nothing" : fmt::format("'{}{}'", text, body.size() > kShownBytes ? "…" : "");
}

json range_of(const Etcd::Keys& keys) {
  json range{{"key", encoded(keys.key)}};
  if (keys.below) {
    std::string end = keys.key;
    ++end.back();
    range["range_end"] = encoded(end);
  }
  return range;
}

}  // namespace

/// An answer of etcd: a document, or one of its refusals.
struct Etcd::Answer {
  json document;
  int code = 0;  ///< not 0: refused
  std::string refusal;
};

absl::StatusOr<Etcd::Answer> Etcd::ask(const std::string& endpoint, std::string_view method, const std::string& body) {
  const auto at = [&](const absl::Status& status) {
    return absl::Status(status.code(), fmt::format("etcd at {}: {}", endpoint, message_of(status)));
  };
  const absl::StatusOr<HttpPost::Reply> reply =
      http_->post(fmt::format("{}/v3/{}", endpoint, method), body, kOneAnswer);
  if (!reply.ok()) return at(reply.status());
  Answer answer{.document = json::parse(reply->body, nullptr, false), .code = 0, .refusal = ""};
  const bool speaks_json = answer.document.is_object();
  if (speaks_json && answer.document.contains("code") && answer.document["code"].is_number_integer()) {
    answer.code = answer.document["code"].get<int>();
    answer.refusal = text_of(answer.document, "message");
  }
  const bool busy =
      answer.code == kUnavailable || answer.code == kDeadlineExceeded || answer.code == kResourceExhausted;
  if (busy || (answer.code == 0 && reply->code >= 502 && reply->code <= 504))
    return at(
        absl::UnavailableError(answer.refusal.empty() ? fmt::format("HTTP status {}", reply->code) : answer.refusal));
  if (!speaks_json || (reply->code != 200 && answer.code == 0))
    return at(absl::FailedPreconditionError(
        fmt::format("what answers there is no etcd, or one older than 3.4 (HTTP status {}, {}): is the address right?",
                    reply->code, shown(reply->body))));
  local_host_ = reply->local_host;
  return answer;
}

absl::StatusOr<Etcd::Answer> Etcd::call(std::string_view method, const std::string& body) {
  absl::Status worst = absl::UnavailableError("no endpoint of etcd");
  for (size_t i = 0; i < endpoints_.size(); ++i) {
    const size_t which = (last_good_ + i) % endpoints_.size();
    absl::StatusOr<Answer> answer = ask(endpoints_[which], method, body);
    if (answer.ok()) {
      last_good_ = which;
      return answer;
    }
    // A mistake in the configuration is what people have to hear of.
    if (i == 0 || !absl::IsUnavailable(answer.status())) worst = answer.status();
  }
  return worst;
}

namespace {

absl::Status refused(std::string_view what, const std::string& why) {
  return absl::FailedPreconditionError(fmt::format("etcd refuses to {}: {}", what, why));
}

}  // namespace

absl::StatusOr<Etcd::Listing> Etcd::list(const Keys& keys) {
  const absl::StatusOr<Answer> answer = call("kv/range", range_of(keys).dump());
  if (!answer.ok()) return answer.status();
  if (answer->code != 0) return refused("list keys", answer->refusal);
  Listing listing{.revision = to_int(number_of(part_of(answer->document, "header"), "revision")), .entries = {}};
  if (listing.revision <= 0)
    return absl::FailedPreconditionError(
        fmt::format("etcd at {}: what answers there is no etcd: no revision in {}", endpoints_[last_good_],
                    shown(answer->document.dump(-1, ' ', true, json::error_handler_t::replace))));
  const auto kvs = answer->document.find("kvs");
  if (kvs == answer->document.end() || !kvs->is_array()) return listing;
  for (const json& kv : *kvs) {
    if (kv.is_object()) listing.entries.push_back({decoded(kv, "key"), decoded(kv, "value"), number_of(kv, "lease")});
  }
  return listing;
}

absl::StatusOr<std::string> Etcd::grant(int64_t seconds) {
  const absl::StatusOr<Answer> answer = call("lease/grant", json{{"TTL", seconds}}.dump());
  if (!answer.ok()) return answer.status();
  if (answer->code != 0) return refused("grant a lease", answer->refusal);
  const std::string lease = number_of(answer->document, "ID");
  if (lease == "0") return absl::FailedPreconditionError("etcd granted a lease without a number");
  return lease;
}

absl::StatusOr<bool> Etcd::keep_alive(const std::string& lease) {
  const absl::StatusOr<Answer> answer = call("lease/keepalive", json{{"ID", lease}}.dump());
  if (!answer.ok()) return answer.status();
  if (answer->code == kNotFound) return false;
  if (answer->code != 0) return refused("keep a lease", answer->refusal);
  return number_of(part_of(answer->document, "result"), "TTL") != "0";
}

absl::Status Etcd::revoke(const std::string& lease) {
  const absl::StatusOr<Answer> answer = call("lease/revoke", json{{"ID", lease}}.dump());
  if (!answer.ok()) return answer.status();
  return answer->code == 0 || answer->code == kNotFound ? absl::OkStatus() : refused("revoke a lease", answer->refusal);
}

absl::StatusOr<Etcd::Put> Etcd::put_if_unchanged(const Keys& watched, int64_t revision, const Entry& entry) {
  json compare = range_of(watched);
  compare["target"] = "MOD";
  compare["result"] = "LESS";
  compare["mod_revision"] = std::to_string(revision + 1);
  const json put{{"key", encoded(entry.key)}, {"value", encoded(entry.value)}, {"lease", entry.lease}};
  const json request{{"compare", json::array({compare})}, {"success", json::array({json{{"request_put", put}}})}};
  const absl::StatusOr<Answer> answer = call("kv/txn", request.dump());
  if (!answer.ok()) return answer.status();
  if (answer->code == kNotFound) return Put::no_lease;
  if (answer->code != 0) return refused("take a key", answer->refusal);
  const auto succeeded = answer->document.find("succeeded");
  const bool done = succeeded != answer->document.end() && succeeded->is_boolean() && succeeded->get<bool>();
  return done ? Put::done : Put::changed;
}

}  // namespace gradrail::tools
