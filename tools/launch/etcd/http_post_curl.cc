#include <curl/curl.h>

#include <cstdlib>

#include "fmt/format.h"
#include "tools/launch/etcd/http_post.h"

namespace gradrail::tools {
namespace {

constexpr size_t kMostBytes = 4 << 20;  // a thousand workers say 200 KB; an unauthenticated server gets no more memory
constexpr long kConnectMs = 1000;       // there may be other endpoints, and a lease that wants to be kept

struct Body {
  std::string bytes;
  bool too_long = false;
};

size_t take(char* data, size_t, size_t count, void* user) {
  auto& body = *static_cast<Body*>(user);
  body.too_long = body.bytes.size() + count > kMostBytes;
  if (body.too_long) return 0;  // ends the transfer
  body.bytes.append(data, count);
  return count;
}

class CurlPost final : public HttpPost {
 public:
  explicit CurlPost(CURL* handle) : handle_(handle) {}
  ~CurlPost() override {
    curl_easy_cleanup(handle_);
    curl_slist_free_all(headers_);
  }
  void set_up();
  absl::StatusOr<Reply> post(const std::string& url, const std::string& body, Duration timeout) override;

 private:
  absl::Status explain(CURLcode code, const Body& answer) const;

  CURL* const handle_;
  curl_slist* headers_ = nullptr;
  char words_[CURL_ERROR_SIZE] = "";
};

void CurlPost::set_up() {
  headers_ = curl_slist_append(headers_, "Content-Type: application/json");
  headers_ = curl_slist_append(headers_, "Expect:");  // else a body of 1 KiB waits for permission
  curl_easy_setopt(handle_, CURLOPT_HTTPHEADER, headers_);
  curl_easy_setopt(handle_, CURLOPT_ERRORBUFFER, words_);
  curl_easy_setopt(handle_, CURLOPT_WRITEFUNCTION, take);
  curl_easy_setopt(handle_, CURLOPT_NOSIGNAL, 1L);  // other threads have handlers of their own
  curl_easy_setopt(handle_, CURLOPT_PROXY, "");     // cluster addresses are never behind $http_proxy
  curl_easy_setopt(handle_, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(handle_, CURLOPT_CONNECTTIMEOUT_MS, kConnectMs);
  const auto file = [&](CURLoption option, const char* variable) {
    const char* const path = std::getenv(variable);
    if (path != nullptr && *path != '\0') curl_easy_setopt(handle_, option, path);
  };
  file(CURLOPT_CAINFO, "ETCDCTL_CACERT");
  file(CURLOPT_SSLCERT, "ETCDCTL_CERT");
  file(CURLOPT_SSLKEY, "ETCDCTL_KEY");
}

absl::Status CurlPost::explain(CURLcode code, const Body& answer) const {
  if (answer.too_long) return absl::FailedPreconditionError(fmt::format("answers with more than {} bytes", kMostBytes));
  const std::string why = words_[0] != '\0' ? words_ : curl_easy_strerror(code);
  switch (code) {
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_HTTP2:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
      return absl::FailedPreconditionError(
          fmt::format("{} (the file of the authority that signed it goes into ETCDCTL_CACERT)", why));
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CONNECT_ERROR:
      return absl::FailedPreconditionError(why);
    default:
      return absl::UnavailableError(why);
  }
}

absl::StatusOr<HttpPost::Reply> CurlPost::post(const std::string& url, const std::string& body, Duration timeout) {
  Body answer;
  words_[0] = '\0';
  curl_easy_setopt(handle_, CURLOPT_URL, url.c_str());
  curl_easy_setopt(handle_, CURLOPT_POSTFIELDSIZE, static_cast<long>(body.size()));
  curl_easy_setopt(handle_, CURLOPT_POSTFIELDS, body.c_str());
  curl_easy_setopt(handle_, CURLOPT_TIMEOUT_MS, static_cast<long>(timeout / std::chrono::milliseconds(1)));
  curl_easy_setopt(handle_, CURLOPT_WRITEDATA, &answer);
  const CURLcode code = curl_easy_perform(handle_);
  if (code != CURLE_OK) return explain(code, answer);
  Reply reply{.code = 0, .body = std::move(answer.bytes), .local_host = ""};
  curl_easy_getinfo(handle_, CURLINFO_RESPONSE_CODE, &reply.code);
  const char* local = nullptr;
  if (curl_easy_getinfo(handle_, CURLINFO_LOCAL_IP, &local) == CURLE_OK && local != nullptr) reply.local_host = local;
  return reply;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpPost>> HttpPost::create() {
  CURL* const handle = curl_easy_init();
  if (handle == nullptr) return absl::InternalError("libcurl cannot be initialised");
  auto post = std::make_unique<CurlPost>(handle);
  post->set_up();
  return post;
}

}  // namespace gradrail::tools
