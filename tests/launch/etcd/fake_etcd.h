#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "nlohmann/json.hpp"
#include "tools/launch/etcd/etcd.h"
#include "tools/launch/etcd/http_post.h"

namespace gradrail::tools {

/// An in-memory etcd for the requests of gradrail. A test can insert an event between two requests. The system tests
/// use a real etcd.
class FakeEtcd {
 public:
  using Reply = absl::StatusOr<HttpPost::Reply>;

  /// A client of it, by so many addresses, which may live in another thread.
  std::unique_ptr<Etcd> client(size_t endpoints = 1);

  /// Called with method and count of the request before it is done; a reply is given instead.
  std::function<std::optional<Reply>(const std::string& method, int count)> before;
  /// The same behind it: the request has been done, its answer is lost.
  std::function<std::optional<Reply>(const std::string& method, int count)> after;

  void put(const std::string& key, const std::string& value, const std::string& lease = "0");
  void remove(const std::string& key);
  /// With all keys that are under it.
  void end_lease(const std::string& lease);
  std::string value(const std::string& key);
  std::string lease(const std::string& key);
  int writes() const { return writes_.load(); }

  /// "HTTP/1.1 200" with that body.
  static Reply answer(const std::string& body, long code = 200);
  Reply handle(const std::string& url, const std::string& body);

 private:
  struct Value {
    std::string value;
    std::string lease;
    int64_t changed = 0;
  };
  nlohmann::json range(const nlohmann::json& request);
  nlohmann::json txn(const nlohmann::json& request);
  Reply act(const std::string& method, const nlohmann::json& request);

  std::recursive_mutex mutex_;
  std::map<std::string, Value> values_;
  std::map<std::string, int> leases_;
  std::map<std::string, int> counts_;
  int64_t revision_ = 1;
  int64_t next_lease_ = 100;
  std::atomic<int> writes_ = 0;
};

}  // namespace gradrail::tools
