#include "launch/etcd/etcd.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string_view>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_replace.h"
#include "base/status.h"
#include "fmt/format.h"
#include "launch/etcd/etcd.grpc.pb.h"
#include "launch/etcd/local_host.h"
#include "ps/protocol/control_call.h"
#include "ps/protocol/control_status.h"
#include "ps/protocol/security.h"

namespace gradrail::launch {
namespace {

/// Several endpoints must have their turn before a lease of 5 s expires.
constexpr Duration kCallDeadline = std::chrono::milliseconds(1500);
/// Less than kCallDeadline: else the cause of a failed connect is lost.
constexpr int kConnectMs = 1000;
// A line of a terminal or two: the text comes from an unknown peer.
constexpr size_t kMaxCauseBytes = 300;
constexpr std::string_view kTlsScheme = "https://";

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> credentials_for(const std::string& endpoint) {
  if (!endpoint.starts_with(kTlsScheme)) return grpc::InsecureChannelCredentials();
  const auto file = [](const char* variable) {
    const char* const path = std::getenv(variable);
    return std::string(path == nullptr ? "" : path);
  };
  // The variables of etcdctl: administrators have set them where etcd asks for certificates.
  const Security security{.cert_file = file("ETCDCTL_CERT"),
                          .key_file = file("ETCDCTL_KEY"),
                          .trusted_ca_file = file("ETCDCTL_CACERT"),
                          .system_authorities = true};
  auto credentials = ps::channel_credentials(security);
  if (credentials.ok()) return credentials;
  // The shared code names flags of `train`, which do not exist for etcd.
  const std::string cause = absl::StrReplaceAll(
      credentials.status().message(),
      {{"--cert-file", "ETCDCTL_CERT"}, {"--key-file", "ETCDCTL_KEY"}, {"--trusted-ca-file", "ETCDCTL_CACERT"}});
  return absl::FailedPreconditionError(fmt::format("etcd at {}: {}", endpoint, cause));
}

/// The first part of a text that a peer may have written, fit for a terminal.
std::string printable(std::string text) {
  text.resize(std::min(text.size(), kMaxCauseBytes));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

struct Outcome {
  absl::Status status;
  bool is_answer = false;  ///< of an etcd: no other endpoint would answer differently
};

/// The result of a call in the terms of Etcd; NOT_FOUND concerns a lease.
Outcome explain(const grpc::Status& status, const std::string& endpoint, std::string_view purpose) {
  const std::string cause = printable(status.error_message());
  const std::string plain_cause = printable(ps::connection_cause(status.error_message()));
  const auto contains = [&](const char* words) { return cause.find(words) != std::string::npos; };
  const auto no_etcd = [&](std::string_view why) {
    return Outcome{absl::FailedPreconditionError(fmt::format(
        "etcd at {}: the server is not etcd, or is older than 3.4 ({}): is the address right?", endpoint, why))};
  };
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      return {absl::OkStatus(), true};
    // etcd answers so for a lease that has ended ("requested lease not found").
    case grpc::StatusCode::NOT_FOUND:
      return {absl::NotFoundError(cause), true};
    case grpc::StatusCode::UNIMPLEMENTED:
    // Servers of other protocols give these two codes.
    case grpc::StatusCode::INTERNAL:
      return no_etcd(cause);
    case grpc::StatusCode::UNAVAILABLE:
      // gRPC 1.51 has no words for an answer of HTTP/1 with status 200.
      if (contains("http1.x server") || cause.ends_with("last error: OK")) return no_etcd("it uses HTTP/1");
      if (contains("CERTIFICATE_VERIFY_FAILED") || contains("certificate verify failed"))
        return {absl::FailedPreconditionError(
            fmt::format("etcd at {}: {} (set ETCDCTL_CACERT to the file of the authority that signed its certificate)",
                        endpoint, plain_cause))};
      [[fallthrough]];
    case grpc::StatusCode::DEADLINE_EXCEEDED:
    // etcd answers so when its quota is used up or requests come too fast.
    case grpc::StatusCode::RESOURCE_EXHAUSTED: {
      // An etcd that expects TLS or a certificate closes the connection without a message.
      const bool hung_up = contains("Socket closed") || contains("Endpoint read failed");
      return {absl::UnavailableError(
          fmt::format("etcd at {}: {}{}", endpoint, plain_cause,
                      hung_up ? " (does it require TLS or a certificate? see etcds:// and ETCDCTL_CERT)" : ""))};
    }
    default:
      return {absl::FailedPreconditionError(fmt::format("etcd at {} refuses to {}: {}", endpoint, purpose, cause)),
              true};
  }
}

}  // namespace

/// The members of one etcd. A call goes to the member that answered last, then to the others in turn.
class Etcd::Endpoints {
 public:
  Endpoints(const std::vector<std::string>& urls, std::shared_ptr<grpc::ChannelCredentials> credentials)
      : credentials_(std::move(credentials)) {
    for (const std::string& url : urls) members_.push_back({.url = url, .channel = nullptr});
  }

  using Call = std::function<grpc::Status(const std::shared_ptr<grpc::Channel>&, grpc::ClientContext&)>;
  /// `purpose` completes "etcd refuses to …".
  absl::Status call(std::string_view purpose, const Call& call);

  const std::string& last_good() const { return members_[last_good_].url; }
  const std::string& peer() const { return peer_; }

 private:
  struct Member {
    std::string url;
    std::shared_ptr<grpc::Channel> channel;  ///< null after a failure: the next call connects at once
  };
  std::shared_ptr<grpc::Channel> connect(const std::string& url) const;

  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  std::vector<Member> members_;
  size_t last_good_ = 0;
  std::string peer_;  ///< of the last answer, in gRPC's notation
};

std::shared_ptr<grpc::Channel> Etcd::Endpoints::connect(const std::string& url) const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMs);  // gRPC's name for the time a connect may take
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);                  // cluster addresses are never behind $http_proxy
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);          // else a new channel inherits an old one's pause
  return grpc::CreateCustomChannel(url.substr(url.find("://") + 3), credentials_, arguments);
}

absl::Status Etcd::Endpoints::call(std::string_view purpose, const Call& call) {
  absl::Status worst = absl::UnavailableError("no endpoint of etcd");
  for (size_t i = 0; i < members_.size(); ++i) {
    // The member that answered last comes first: a member that is down costs its deadline only once.
    const size_t index = (last_good_ + i) % members_.size();
    Member& member = members_[index];
    if (member.channel == nullptr) member.channel = connect(member.url);
    grpc::ClientContext context;
    ps::set_deadline(context, kCallDeadline);
    const Outcome outcome = explain(call(member.channel, context), member.url, purpose);
    if (outcome.is_answer) {
      last_good_ = index;
      peer_ = context.peer();
      return outcome.status;
    }
    member.channel = nullptr;
    // The user must know of a wrong configuration, even if another endpoint is only absent.
    if (i == 0 || !absl::IsUnavailable(outcome.status)) worst = outcome.status;
  }
  return worst;
}

Etcd::Etcd(std::unique_ptr<Endpoints> endpoints) : endpoints_(std::move(endpoints)) {}
Etcd::~Etcd() = default;

absl::StatusOr<std::unique_ptr<Etcd>> Etcd::open(const std::vector<std::string>& endpoints) {
  // One scheme for all endpoints: parse_etcd_rendezvous() gives all of them the same.
  GRADRAIL_ASSIGN_OR_RETURN(auto credentials, credentials_for(endpoints.empty() ? "" : endpoints.front()));
  return absl::WrapUnique(new Etcd(std::make_unique<Endpoints>(endpoints, std::move(credentials))));
}

std::string Etcd::local_host() const { return local_host_towards(endpoints_->peer()); }

absl::StatusOr<Etcd::Listing> Etcd::list(const std::string& key) {
  etcdserverpb::RangeRequest request;
  request.set_key(key);
  if (key.ends_with('/')) {
    // etcd takes the range [key, end): the byte after '/' ends the keys below the prefix.
    std::string end = key;
    ++end.back();
    request.set_range_end(end);
  }
  etcdserverpb::RangeResponse found;
  GRADRAIL_RETURN_IF_ERROR(endpoints_->call("list keys", [&](const auto& channel, auto& context) {
    return etcdserverpb::KV::NewStub(channel)->Range(&context, request, &found);
  }));
  Listing listing{.revision = found.header().revision(), .entries = {}};
  // Each answer of etcd has a revision of at least 1. A server that ignores unknown fields could answer without one.
  if (listing.revision <= 0)
    return absl::FailedPreconditionError(
        fmt::format("etcd at {}: the server is not etcd: its answer has no revision", endpoints_->last_good()));
  for (const etcdserverpb::KeyValue& kv : found.kvs()) listing.entries.push_back({kv.key(), kv.value(), kv.lease()});
  return listing;
}

absl::StatusOr<int64_t> Etcd::grant(int64_t seconds) {
  etcdserverpb::LeaseGrantRequest request;
  request.set_ttl(seconds);
  etcdserverpb::LeaseGrantResponse granted;
  GRADRAIL_RETURN_IF_ERROR(endpoints_->call("grant a lease", [&](const auto& channel, auto& context) {
    return etcdserverpb::Lease::NewStub(channel)->LeaseGrant(&context, request, &granted);
  }));
  if (granted.id() == 0)
    return absl::FailedPreconditionError(
        fmt::format("etcd at {}: granted a lease without a number", endpoints_->last_good()));
  return granted.id();
}

absl::StatusOr<bool> Etcd::keep_alive(int64_t lease) {
  etcdserverpb::LeaseKeepAliveRequest request;
  request.set_id(lease);
  etcdserverpb::LeaseKeepAliveResponse kept;
  const absl::Status status = endpoints_->call("keep a lease", [&](const auto& channel, auto& context) {
    const auto stream = etcdserverpb::Lease::NewStub(channel)->LeaseKeepAlive(&context);
    // A second endpoint can run this again.
    kept.Clear();
    stream->Write(request);
    stream->WritesDone();
    stream->Read(&kept);
    return stream->Finish();  // has the cause if one of the three failed
  });
  if (absl::IsNotFound(status)) return false;
  if (!status.ok()) return status;
  // etcd answers with a time of 0 for a lease that does not exist, not with an error.
  return kept.ttl() > 0;
}

absl::Status Etcd::revoke(int64_t lease) {
  etcdserverpb::LeaseRevokeRequest request;
  request.set_id(lease);
  etcdserverpb::LeaseRevokeResponse revoked;
  const absl::Status status = endpoints_->call("revoke a lease", [&](const auto& channel, auto& context) {
    return etcdserverpb::Lease::NewStub(channel)->LeaseRevoke(&context, request, &revoked);
  });
  // A lease that has ended already is what was asked for.
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

absl::StatusOr<Etcd::Put> Etcd::put_if_unchanged(int64_t revision, const Entry& entry) {
  etcdserverpb::TxnRequest request;
  etcdserverpb::Compare& compare = *request.add_compare();
  compare.set_key(entry.key);
  // The key was not written after `revision`.
  compare.set_target(etcdserverpb::Compare::MOD);
  compare.set_result(etcdserverpb::Compare::LESS);
  compare.set_mod_revision(revision + 1);
  etcdserverpb::PutRequest& put = *request.add_success()->mutable_request_put();
  put.set_key(entry.key);
  put.set_value(entry.value);
  put.set_lease(entry.lease);
  etcdserverpb::TxnResponse answer;
  const absl::Status status = endpoints_->call("claim a key", [&](const auto& channel, auto& context) {
    return etcdserverpb::KV::NewStub(channel)->Txn(&context, request, &answer);
  });
  // The transaction names one lease, so that nothing else can be missing.
  if (absl::IsNotFound(status)) return Put::no_lease;
  if (!status.ok()) return status;
  return answer.succeeded() ? Put::done : Put::changed;
}

}  // namespace gradrail::launch
