#include "tests/launch/etcd/fake_etcd.h"

#include "absl/strings/escaping.h"

namespace gradrail::tools {
namespace {

using nlohmann::json;

std::string decoded(const json& from, const char* name) {
  std::string text;
  absl::Base64Unescape(from.value(name, ""), &text);
  return text;
}

class Client final : public HttpPost {
 public:
  explicit Client(FakeEtcd& etcd) : etcd_(etcd) {}
  absl::StatusOr<Reply> post(const std::string& url, const std::string& body, Duration) override {
    return etcd_.handle(url, body);
  }

 private:
  FakeEtcd& etcd_;
};

json no_lease() { return {{"code", 5}, {"message", "etcdserver: requested lease not found"}}; }

}  // namespace

std::unique_ptr<Etcd> FakeEtcd::client(size_t endpoints) {
  return std::make_unique<Etcd>(std::vector<std::string>(endpoints, "http://fake:2379"),
                                std::make_unique<Client>(*this));
}

FakeEtcd::Reply FakeEtcd::answer(const std::string& body, long code) {
  return HttpPost::Reply{.code = code, .body = body, .local_host = "10.0.0.7"};
}

FakeEtcd::Reply FakeEtcd::handle(const std::string& url, const std::string& body) {
  std::lock_guard lock(mutex_);
  const std::string method = url.substr(url.find("/v3/") + 4);
  const int count = ++counts_[method];
  if (before) {
    if (std::optional<Reply> instead = before(method, count)) return *std::move(instead);
  }
  Reply reply = act(method, json::parse(body));
  if (after) {
    if (std::optional<Reply> instead = after(method, count)) return *std::move(instead);
  }
  return reply;
}

FakeEtcd::Reply FakeEtcd::act(const std::string& method, const json& request) {
  if (method == "kv/range") return answer(range(request).dump());
  if (method == "kv/txn") {
    const json done = txn(request);
    return answer(done.dump(), done.contains("code") ? 404 : 200);
  }
  if (method == "lease/grant") {
    const std::string id = std::to_string(next_lease_++);
    leases_[id] = request.at("TTL");
    return answer(json{{"ID", id}, {"TTL", "5"}}.dump());
  }
  const std::string id = request.at("ID");
  const bool there = leases_.contains(id);
  if (method == "lease/keepalive") {
    json result{{"ID", id}};
    if (there) result["TTL"] = "5";
    return answer(json{{"result", result}}.dump());
  }
  if (method != "lease/revoke") return answer("404 page not found", 404);
  end_lease(id);
  return there ? answer("{}") : answer(no_lease().dump(), 404);
}

json FakeEtcd::range(const json& request) {
  const std::string first = decoded(request, "key"), end = decoded(request, "range_end");
  json kvs = json::array();
  for (const auto& [key, value] : values_) {
    if (end.empty() ? key != first : key < first || key >= end) continue;
    kvs.push_back({{"key", absl::Base64Escape(key)},
                   {"value", absl::Base64Escape(value.value)},
                   {"mod_revision", std::to_string(value.changed)},
                   {"lease", value.lease}});
  }
  json found{{"header", {{"revision", std::to_string(revision_)}}}};
  if (!kvs.empty()) found["kvs"] = kvs;
  return found;
}

json FakeEtcd::txn(const json& request) {
  const json& compare = request.at("compare").at(0);
  const int64_t less_than = std::stoll(compare.at("mod_revision").get<std::string>());
  const json watched = range(compare);
  const json& put = request.at("success").at(0).at("request_put");
  const std::string lease = put.at("lease");
  if (!leases_.contains(lease)) return no_lease();
  if (watched.contains("kvs")) {
    for (const json& kv : watched.at("kvs")) {
      if (std::stoll(kv.at("mod_revision").get<std::string>()) >= less_than)
        return {{"header", {{"revision", std::to_string(revision_)}}}};
    }
  }
  this->put(decoded(put, "key"), decoded(put, "value"), lease);
  ++writes_;
  return {{"succeeded", true}};
}

void FakeEtcd::put(const std::string& key, const std::string& value, const std::string& lease) {
  std::lock_guard lock(mutex_);
  values_[key] = {.value = value, .lease = lease, .changed = ++revision_};
}

void FakeEtcd::remove(const std::string& key) {
  std::lock_guard lock(mutex_);
  values_.erase(key);
  ++revision_;
}

void FakeEtcd::end_lease(const std::string& lease) {
  std::lock_guard lock(mutex_);
  leases_.erase(lease);
  std::erase_if(values_, [&](const auto& entry) { return entry.second.lease == lease; });
  ++revision_;
}

std::string FakeEtcd::value(const std::string& key) {
  std::lock_guard lock(mutex_);
  return values_.contains(key) ? values_[key].value : "";
}

std::string FakeEtcd::lease(const std::string& key) {
  std::lock_guard lock(mutex_);
  return values_.contains(key) ? values_[key].lease : "";
}

}  // namespace gradrail::tools
