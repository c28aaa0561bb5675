#include "bench/cluster/rank_coordinator.h"

#include <algorithm>
#include <cstdio>
#include <exception>

#include "absl/memory/memory.h"
#include "base/status.h"
#include "bench/cluster/load_json.h"
#include "bench/driver/subprocess.h"
#include "fmt/format.h"
#include "gradrail/cluster.h"
#include "launch/rendezvous/rank_join.h"
#include "nlohmann/json.hpp"

namespace gradrail::bench {
namespace {

using launch::proto::RankMessage;

constexpr Duration kGather = std::chrono::seconds(60);
constexpr Duration kShort = std::chrono::seconds(10);

void say(const std::string& text) { fmt::print(stderr, "gradrail bench: {}\n", text); }

absl::Status send(launch::RankStream& stream, const nlohmann::json& json, TimePoint deadline) {
  RankMessage message;
  message.set_json(text_of(json));
  return stream.send(message, deadline);
}

absl::StatusOr<nlohmann::json> receive(launch::RankStream& stream, TimePoint deadline) {
  GRADRAIL_ASSIGN_OR_RETURN(const RankMessage message, stream.receive(RankMessage::kJson, deadline));
  nlohmann::json json = nlohmann::json::parse(message.json(), nullptr, false);
  if (!json.is_object()) return absl::UnavailableError("a rank sent a malformed message");
  return json;
}

/// A request and its answer: {"failed": why} is one, too.
class RemoteMember final : public Member {
 public:
  /// `end` outlives it.
  RemoteMember(launch::RankStreamPtr stream, std::string host, const absl::Status& end)
      : stream_(std::move(stream)), host_(std::move(host)), end_(end) {}

  absl::StatusOr<std::string> serve(const ExchangeLoad& load, uint32_t task, TimePoint deadline) override {
    GRADRAIL_ASSIGN_OR_RETURN(const nlohmann::json answer,
                              ask({{"do", "serve"}, {"task", task}, {"load", to_json(at_host(load))}}, deadline));
    if (!answer.contains("address")) return absl::UnavailableError(answer.value("failed", "did not start"));
    return answer.at("address").get<std::string>();
  }

  absl::Status work(const ExchangeLoad& load, uint32_t task) override {
    GRADRAIL_ASSIGN_OR_RETURN(
        const nlohmann::json answer,
        ask({{"do", "work"}, {"task", task}, {"load", to_json(at_host(load))}}, Clock::now() + kShort));
    return answer.contains("failed") ? absl::UnavailableError(answer.at("failed").get<std::string>())
                                     : absl::OkStatus();
  }

  bool is_done(Duration timeout) override {
    const auto millis = std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count();
    const absl::StatusOr<nlohmann::json> answer = ask({{"do", "wait"}, {"within_ms", millis}}, Clock::now() + kShort);
    // A lost rank counts as done: collect() then reports the cause.
    if (answer.ok()) reports_ = answer->value("reports", reports_);
    return !answer.ok() || answer->value("done", true);
  }

  uint64_t reports() const override { return reports_; }

  absl::StatusOr<nlohmann::json> collect(TimePoint deadline) override {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    // The rank answers before or at the deadline; its answer needs time to arrive, too.
    GRADRAIL_ASSIGN_OR_RETURN(nlohmann::json answer,
                              ask({{"do", "collect"}, {"within_ms", std::max<int64_t>(0, left)}}, deadline + kShort));
    if (answer.contains("ended")) return absl::UnavailableError(answer.at("ended").get<std::string>());
    return answer;
  }

  void abandon() override { ask({{"do", "abandon"}}, Clock::now() + kShort).IgnoreError(); }
  ~RemoteMember() override {
    const nlohmann::json end = {{"do", "end"}, {"status", end_.raw_code()}, {"why", std::string(message_of(end_))}};
    send(*stream_, end, Clock::now() + kShort).IgnoreError();
  }

 private:
  ExchangeLoad at_host(ExchangeLoad load) const {
    load.bind_host = host_;
    return load;
  }
  absl::StatusOr<nlohmann::json> ask(const nlohmann::json& request, TimePoint deadline) {
    GRADRAIL_RETURN_IF_ERROR(send(*stream_, request, deadline));
    return receive(*stream_, deadline);
  }

  const launch::RankStreamPtr stream_;
  const std::string host_;
  const absl::Status& end_;
  uint64_t reports_ = 0;
};

launch::proto::RankHello hello_of(const Place& place, const std::string& address) {
  launch::proto::RankHello hello =
      launch::hello_of(fmt::format("bench of {}", place.from), place.rank, place.size, place.servers);
  hello.set_address(address);
  return hello;
}

/// Answers one request of rank 0.
nlohmann::json answer(const nlohmann::json& request, RankMember& member) {
  const std::string what = request.at("do");
  const auto within = [&] { return std::chrono::milliseconds(request.at("within_ms").get<int64_t>()); };
  if (what == "abandon") {
    member.abandon();
    return nlohmann::json::object();
  }
  if (what == "wait") {
    const bool done = member.is_done(within());
    return {{"done", done}, {"reports", member.reports()}};
  }
  if (what == "collect") {
    absl::StatusOr<nlohmann::json> result = member.collect(Clock::now() + within());
    return result.ok() ? *std::move(result) : nlohmann::json{{"ended", std::string(message_of(result.status()))}};
  }
  const ExchangeLoad load = load_from(request.at("load"));
  const uint32_t task = request.at("task");
  if (what == "serve") {
    const absl::StatusOr<std::string> address = member.serve(load, task, Clock::now() + kStartUp);
    if (!address.ok()) return {{"failed", std::string(message_of(address.status()))}};
    return {{"address", *address}};
  }
  if (const absl::Status begun = member.work(load, task); !begun.ok())
    return {{"failed", std::string(message_of(begun))}};
  return nlohmann::json::object();
}

/// The last request of rank 0. A rank ends with the error of rank 0.
absl::Status end_of(const nlohmann::json& request, const Place& place) {
  const auto code = static_cast<absl::StatusCode>(request.at("status").get<int>());
  if (code == absl::StatusCode::kOk) return absl::OkStatus();
  return absl::Status(
      code, fmt::format("rank 0 at {} has ended: {}", place.rendezvous, request.at("why").get<std::string>()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankCoordinator>> RankCoordinator::open(const Place& place,
                                                                       const std::string& bind_host) {
  auto coordinator = absl::WrapUnique(new RankCoordinator(place));
  // A cluster names this host. With a launcher, the other ranks show at which address they reach it.
  const HostPort meet = parse_host_port(place.rendezvous).value_or(HostPort{});
  const std::string address = bind_host.empty() && !place.by_launcher ? meet.host : bind_host;
  GRADRAIL_ASSIGN_OR_RETURN(
      coordinator->ranks_,
      launch::RankServer::gather(
          {.address = place.rendezvous, .hello = hello_of(place, address), .timeout = kGather, .say = say}));
  const launch::AssignmentTable& table = coordinator->ranks_->assignments();
  for (const launch::proto::RankHello& hello : table.hellos()) {
    Host& host = coordinator->hosts_[hello.host_id()];
    // Launchers bind each rank to its own cores.
    host.cpus = host.cpus | topology::CpuSet::parse(hello.cpus()).value_or(topology::CpuSet{});
    ++(hello.rank() < place.servers ? host.servers : host.workers);
  }
  coordinator->places_.resize(place.size);
  for (const launch::proto::RankHello& hello : table.hellos())
    coordinator->places_[hello.rank()].host_id = hello.host_id();
  const launch::proto::RankAssignment first = table.assignment_of(0);
  coordinator->bind_host_ = first.ps_hosts(0);
  for (uint32_t i = 0; i < place.size; ++i) {
    const bool serves = i < place.servers;
    const int index = static_cast<int>(serves ? i : i - place.servers);
    coordinator->places_[i].address = serves ? first.ps_hosts(index) : first.worker_hosts(index);
  }
  coordinator->members_.resize(place.size);
  coordinator->members_[0] = std::make_unique<RankMember>();
  for (uint32_t i = 1; i < place.size; ++i)
    coordinator->members_[i] = std::make_unique<RemoteMember>(std::move(coordinator->ranks_->streams()[i]),
                                                              coordinator->places_[i].address, coordinator->end_);
  return coordinator;
}

std::vector<Member*> RankCoordinator::members() const {
  std::vector<Member*> list;
  for (const std::unique_ptr<Member>& member : members_) list.push_back(member.get());
  return list;
}

std::vector<Member*> RankCoordinator::servers() const {
  std::vector<Member*> list;
  for (uint32_t i = 0; i < place_.servers; ++i) list.push_back(members_[i].get());
  return list;
}

std::vector<Member*> RankCoordinator::workers() const {
  std::vector<Member*> list;
  for (uint32_t i = place_.servers; i < place_.size; ++i) list.push_back(members_[i].get());
  return list;
}

bool RankCoordinator::oversubscribed(uint32_t shards) const {
  return std::any_of(hosts_.begin(), hosts_.end(), [&](const auto& host) {
    return host.second.workers + host.second.servers * shards > static_cast<uint32_t>(host.second.cpus.count());
  });
}

absl::Status serve_rank(const Place& place, const std::string& bind_host) {
  GRADRAIL_ASSIGN_OR_RETURN(
      const launch::RankStreamPtr stream,
      launch::join_first_rank(place.rendezvous, "", hello_of(place, bind_host), Clock::now() + kGather, say));
  RankMember member;
  while (true) {
    GRADRAIL_ASSIGN_OR_RETURN(const nlohmann::json request, receive(*stream, TimePoint::max()));
    try {
      if (request.at("do") == "end") return end_of(request, place);
      GRADRAIL_RETURN_IF_ERROR(send(*stream, answer(request, member), Clock::now() + kShort));
    } catch (const std::exception& error) {
      return absl::FailedPreconditionError(
          fmt::format("rank 0 at {} sent a malformed request: {}", place.rendezvous, error.what()));
    }
  }
}

}  // namespace gradrail::bench
