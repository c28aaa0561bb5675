#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "launch/etcd/etcd.grpc.pb.h"
#include "launch/etcd/etcd.h"

namespace gradrail::launch {

/// An in-memory etcd for the requests of gradrail, at a port of this host. A test can insert an event between two
/// requests. The system tests use a real etcd.
class FakeEtcd {
 public:
  /// At any free port if `port` is "0".
  explicit FakeEtcd(const std::string& port = "0");
  ~FakeEtcd();

  /// A client of it, by so many endpoints, which may belong to another thread.
  std::unique_ptr<Etcd> client(size_t endpoints = 1) const;
  /// "http://127.0.0.1:PORT"
  const std::string& url() const { return url_; }

  /// Called with method ("Txn") and count of the request before it is done; a status is returned instead.
  using Hook = std::function<std::optional<grpc::Status>(const std::string& method, int count)>;
  Hook before;
  /// The same behind it: the request has been done, its answer is lost.
  Hook after;
  /// May change an answer.
  std::function<void(google::protobuf::Message&)> edit;

  void put(const std::string& key, const std::string& value, int64_t lease = 0);
  void remove(const std::string& key);
  /// With all keys that are under it.
  void end_lease(int64_t lease);
  std::string value(const std::string& key);
  int64_t lease(const std::string& key);
  int writes() const { return writes_.load(); }
  int requests() const { return requests_.load(); }

 private:
  struct Value {
    std::string value;
    int64_t lease = 0;
    int64_t changed = 0;
  };
  class Keys;
  class Leases;
  /// One request between the hooks.
  grpc::Status handle(const std::string& method, google::protobuf::Message& answer,
                      const std::function<grpc::Status()>& act);
  bool matches(const std::string& key, const std::string& first, const std::string& end) const;
  grpc::Status txn(const etcdserverpb::TxnRequest& request, etcdserverpb::TxnResponse& answer);

  std::recursive_mutex mutex_;
  std::map<std::string, Value> values_;
  std::map<int64_t, int64_t> leases_;  ///< their seconds
  std::map<std::string, int> counts_;
  int64_t revision_ = 1;
  int64_t next_lease_ = 100;
  std::atomic<int> writes_ = 0;
  std::atomic<int> requests_ = 0;
  std::unique_ptr<Keys> keys_service_;
  std::unique_ptr<Leases> leases_service_;
  std::unique_ptr<grpc::Server> server_;
  std::string url_;
};

}  // namespace gradrail::launch
