#include "tests/launch/etcd/fake_etcd.h"

#include "base/check.h"
#include "fmt/format.h"

namespace gradrail::launch {
namespace {

using grpc::ServerContext;
using grpc::Status;

Status no_lease() { return {grpc::StatusCode::NOT_FOUND, "etcdserver: requested lease not found"}; }

}  // namespace

class FakeEtcd::Keys final : public etcdserverpb::KV::Service {
 public:
  explicit Keys(FakeEtcd& etcd) : etcd_(etcd) {}

  Status Range(ServerContext*, const etcdserverpb::RangeRequest* request,
               etcdserverpb::RangeResponse* answer) override {
    return etcd_.handle("Range", *answer, [&] {
      answer->mutable_header()->set_revision(etcd_.revision_);
      for (const auto& [key, value] : etcd_.values_) {
        if (!etcd_.matches(key, request->key(), request->range_end())) continue;
        etcdserverpb::KeyValue& found = *answer->add_kvs();
        found.set_key(key);
        found.set_value(value.value);
        found.set_mod_revision(value.changed);
        found.set_lease(value.lease);
      }
      return Status::OK;
    });
  }
  Status Txn(ServerContext*, const etcdserverpb::TxnRequest* request, etcdserverpb::TxnResponse* answer) override {
    return etcd_.handle("Txn", *answer, [&] { return etcd_.txn(*request, *answer); });
  }

 private:
  FakeEtcd& etcd_;
};

class FakeEtcd::Leases final : public etcdserverpb::Lease::Service {
 public:
  explicit Leases(FakeEtcd& etcd) : etcd_(etcd) {}

  Status LeaseGrant(ServerContext*, const etcdserverpb::LeaseGrantRequest* request,
                    etcdserverpb::LeaseGrantResponse* answer) override {
    return etcd_.handle("LeaseGrant", *answer, [&] {
      answer->set_id(etcd_.next_lease_++);
      etcd_.leases_[answer->id()] = request->ttl();
      return Status::OK;
    });
  }
  Status LeaseRevoke(ServerContext*, const etcdserverpb::LeaseRevokeRequest* request,
                     etcdserverpb::LeaseRevokeResponse* answer) override {
    return etcd_.handle("LeaseRevoke", *answer, [&] {
      if (!etcd_.leases_.contains(request->id())) return no_lease();
      etcd_.end_lease(request->id());
      return Status::OK;
    });
  }
  Status LeaseKeepAlive(ServerContext*,
                        grpc::ServerReaderWriter<etcdserverpb::LeaseKeepAliveResponse,
                                                 etcdserverpb::LeaseKeepAliveRequest>* stream) override {
    etcdserverpb::LeaseKeepAliveRequest request;
    while (stream->Read(&request)) {
      etcdserverpb::LeaseKeepAliveResponse answer;
      const Status status = etcd_.handle("LeaseKeepAlive", answer, [&] {
        const auto found = etcd_.leases_.find(request.id());
        answer.set_id(request.id());
        answer.set_ttl(found == etcd_.leases_.end() ? 0 : found->second);
        return Status::OK;
      });
      if (!status.ok()) return status;
      stream->Write(answer);
    }
    return Status::OK;
  }

 private:
  FakeEtcd& etcd_;
};

FakeEtcd::FakeEtcd(const std::string& port)
    : keys_service_(std::make_unique<Keys>(*this)), leases_service_(std::make_unique<Leases>(*this)) {
  int bound = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:" + port, grpc::InsecureServerCredentials(), &bound);
  builder.RegisterService(keys_service_.get());
  builder.RegisterService(leases_service_.get());
  server_ = builder.BuildAndStart();
  GRADRAIL_CHECK(server_ != nullptr && bound != 0);
  url_ = fmt::format("http://127.0.0.1:{}", bound);
}

FakeEtcd::~FakeEtcd() = default;

std::unique_ptr<Etcd> FakeEtcd::client(size_t endpoints) const {
  return *Etcd::open(std::vector<std::string>(endpoints, url_));
}

Status FakeEtcd::handle(const std::string& method, google::protobuf::Message& answer,
                        const std::function<Status()>& act) {
  std::lock_guard lock(mutex_);
  ++requests_;
  const int count = ++counts_[method];
  if (before) {
    if (const std::optional<Status> instead = before(method, count)) return *instead;
  }
  const Status status = act();
  if (after) {
    if (const std::optional<Status> instead = after(method, count)) return *instead;
  }
  if (edit) edit(answer);
  return status;
}

bool FakeEtcd::matches(const std::string& key, const std::string& first, const std::string& end) const {
  return end.empty() ? key == first : key >= first && key < end;
}

Status FakeEtcd::txn(const etcdserverpb::TxnRequest& request, etcdserverpb::TxnResponse& answer) {
  const etcdserverpb::Compare& compare = request.compare(0);
  GRADRAIL_CHECK(compare.target() == etcdserverpb::Compare::MOD && compare.result() == etcdserverpb::Compare::LESS);
  const etcdserverpb::PutRequest& put = request.success(0).request_put();
  if (!leases_.contains(put.lease())) return no_lease();
  for (const auto& [key, value] : values_) {
    if (key == compare.key() && value.changed >= compare.mod_revision()) return Status::OK;
  }
  this->put(put.key(), put.value(), put.lease());
  ++writes_;
  answer.set_succeeded(true);
  return Status::OK;
}

void FakeEtcd::put(const std::string& key, const std::string& value, int64_t lease) {
  std::lock_guard lock(mutex_);
  values_[key] = {.value = value, .lease = lease, .changed = ++revision_};
}

void FakeEtcd::remove(const std::string& key) {
  std::lock_guard lock(mutex_);
  values_.erase(key);
  ++revision_;
}

void FakeEtcd::end_lease(int64_t lease) {
  std::lock_guard lock(mutex_);
  leases_.erase(lease);
  std::erase_if(values_, [&](const auto& entry) { return entry.second.lease == lease; });
  ++revision_;
}

std::string FakeEtcd::value(const std::string& key) {
  std::lock_guard lock(mutex_);
  return values_.contains(key) ? values_[key].value : "";
}

int64_t FakeEtcd::lease(const std::string& key) {
  std::lock_guard lock(mutex_);
  return values_.contains(key) ? values_[key].lease : 0;
}

}  // namespace gradrail::launch
