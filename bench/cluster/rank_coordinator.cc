#include "bench/cluster/rank_coordinator.h"

#include <algorithm>

#include "base/status.h"
#include "base/version.h"
#include "bench/cluster/load_json.h"
#include "bench/report/versions.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "ps/protocol/cluster_spec.h"
#include "ps/protocol/json_link.h"
#include "topology/pin.h"
#include "transport/registry.h"

namespace gradrail::bench {
namespace {

constexpr Duration kGather = std::chrono::seconds(60);
constexpr Duration kHello = std::chrono::milliseconds(500);  // sent at once; a silent rank makes the others wait
constexpr Duration kShort = std::chrono::seconds(10);

/// A request and its answer: {"failed": why} is one, too.
class RemoteMember final : public Member {
 public:
  RemoteMember(ps::JsonLink link, std::string name) : link_(std::move(link)), name_(std::move(name)) {}

  absl::StatusOr<std::string> serve(const ExchangeLoad& load, uint32_t task, TimePoint deadline) override {
    const absl::StatusOr<nlohmann::json> answer =
        ask({{"do", "serve"}, {"task", task}, {"load", to_json(load)}}, deadline);
    if (!answer.ok()) return answer.status();
    if (!answer->contains("address")) return absl::UnavailableError(answer->value("failed", "did not start"));
    return answer->at("address").get<std::string>();
  }

  absl::Status work(const ExchangeLoad& load, uint32_t task) override {
    return ask({{"do", "work"}, {"task", task}, {"load", to_json(load)}}, Clock::now() + kShort).status();
  }

  bool is_done(Duration timeout) override {
    const auto millis = std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count();
    const absl::StatusOr<nlohmann::json> answer = ask({{"do", "wait"}, {"within_ms", millis}}, Clock::now() + kShort);
    // A lost rank counts as done: collect() then reports the cause.
    return !answer.ok() || answer->value("done", true);
  }

  absl::StatusOr<nlohmann::json> collect(TimePoint deadline) override {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    const absl::StatusOr<nlohmann::json> answer =
        // The rank answers at the deadline at the latest; its answer needs time to arrive, too.
        ask({{"do", "collect"}, {"within_ms", std::max<int64_t>(0, left)}}, deadline + kShort);
    if (!answer.ok()) return answer.status();
    if (answer->contains("ended")) return absl::UnavailableError(answer->at("ended").get<std::string>());
    return *answer;
  }

  void abandon() override { ask({{"do", "abandon"}}, Clock::now() + kShort).IgnoreError(); }
  /// The run is over, as it should be.
  ~RemoteMember() override {
    if (lost_.ok()) link_.send({{"do", "end"}}, Clock::now() + kShort).IgnoreError();
  }

 private:
  absl::StatusOr<nlohmann::json> ask(const nlohmann::json& request, TimePoint deadline) {
    if (!lost_.ok()) return lost_;
    absl::Status sent = link_.send(request, deadline);
    absl::StatusOr<nlohmann::json> answer =
        sent.ok() ? link_.receive(deadline) : absl::StatusOr<nlohmann::json>(std::move(sent));
    // An answer that comes later would be taken for the next one's.
    if (!answer.ok()) {
      lost_ = absl::UnavailableError(fmt::format("{} {}", name_, message_of(answer.status())));
      return lost_;
    }
    return answer;
  }

  ps::JsonLink link_;
  const std::string name_;
  absl::Status lost_;
};

bool is_hello(const nlohmann::json& message) {
  const auto number = [&](const char* name) { return message.contains(name) && message[name].is_number_unsigned(); };
  const auto text = [&](const char* name) { return message.contains(name) && message[name].is_string(); };
  return text("gradrail bench") && text("host") && number("rank") && number("size") && message.contains("cpus") &&
         message["cpus"].is_array() && std::all_of(message["cpus"].begin(), message["cpus"].end(), [](const auto& cpu) {
           return cpu.is_number_unsigned() && cpu <= topology::CpuSet::kMaxCpu;
         });
}

nlohmann::json hello_of(const Place& place) {
  return {{"gradrail bench", build_version()},
          {"rank", place.rank},
          {"size", place.size},
          {"host", transport::host_id()},
          {"cpus", topology::usable_cpus().to_vector()}};
}

/// One request of rank 0.
nlohmann::json answer(const nlohmann::json& request, const std::string& bind_host, std::unique_ptr<SharedPage>& page,
                      std::unique_ptr<LocalMember>& member) {
  const std::string what = request.at("do");
  if (what == "abandon") {
    member.reset();
    return nlohmann::json::object();
  }
  if (what == "wait")
    return {{"done",
             member == nullptr || member->is_done(std::chrono::milliseconds(request.at("within_ms").get<int64_t>()))}};
  if (what == "collect") {
    if (member == nullptr) return {{"ended", "has no task"}};
    absl::StatusOr<nlohmann::json> result =
        member->collect(Clock::now() + std::chrono::milliseconds(request.at("within_ms").get<int64_t>()));
    member.reset();
    return result.ok() ? *std::move(result) : nlohmann::json{{"ended", std::string(message_of(result.status()))}};
  }
  member.reset();
  page = std::make_unique<SharedPage>();
  if (page->get() == nullptr) return {{"failed", "no memory"}};
  member = std::make_unique<LocalMember>(*page);
  ExchangeLoad load = load_from(request.at("load"));
  load.bind_host = bind_host;
  const uint32_t task = request.at("task");
  if (what == "serve") {
    const absl::StatusOr<std::string> address = member->serve(load, task, Clock::now() + kStartUp);
    if (!address.ok()) return {{"failed", std::string(message_of(address.status()))}};
    return {{"address", *address}};
  }
  // Workers of several hosts share no page: rank 0 gives the number to each of them.
  page->get()->iterations = load.iterations;
  member->work(load, task).IgnoreError();  // collect() reports a fork that fails
  return nlohmann::json::object();
}

}  // namespace

RankCoordinator::~RankCoordinator() = default;

void RankCoordinator::count(const std::string& host, const topology::CpuSet& cpus, uint32_t rank) {
  Host& known = hosts_[host];
  known.cpus = known.cpus | cpus;  // launchers bind each rank to cores of its own
  ++(rank < place_.servers ? known.servers : known.workers);
}

absl::StatusOr<std::unique_ptr<RankCoordinator>> RankCoordinator::open(const Place& place,
                                                                       const std::string& bind_host) {
  const ps::HostPort meet = ps::parse_host_port(place.rendezvous).value_or(ps::HostPort{});
  // A host's own name may be an address of no other host: any address serves where a launcher named it.
  const std::string any = meet.host.find(':') == std::string::npos ? "0.0.0.0" : "::";
  absl::StatusOr<ps::JsonListener> listener =
      ps::JsonListener::open(place.by_launcher ? ps::to_string({.host = any, .port = meet.port}) : place.rendezvous);
  if (!listener.ok()) return listener.status();
  std::unique_ptr<RankCoordinator> coordinator(new RankCoordinator);
  coordinator->place_ = place;
  coordinator->bind_host_ = bind_host.empty() && !place.by_launcher ? meet.host : bind_host;
  if (coordinator->page_.get() == nullptr) return absl::ResourceExhaustedError("no memory");
  coordinator->members_.resize(place.size);
  coordinator->members_[0] = std::make_unique<LocalMember>(coordinator->page_);
  coordinator->count(transport::host_id(), topology::usable_cpus(), 0);
  const TimePoint deadline = Clock::now() + kGather;
  const auto missing = [&] {
    std::vector<size_t> ranks;
    for (size_t i = 0; i < coordinator->members_.size(); ++i)
      if (coordinator->members_[i] == nullptr) ranks.push_back(i);
    return ranks;
  };
  while (!missing().empty()) {
    absl::StatusOr<ps::JsonLink> link = listener->accept(deadline);
    if (!link.ok()) {
      return absl::DeadlineExceededError(fmt::format("rank {} of {} (by {}) did not come to {} within {} s",
                                                     fmt::join(missing(), ", "), place.size, place.from,
                                                     place.rendezvous, kGather / std::chrono::seconds(1)));
    }
    const absl::StatusOr<nlohmann::json> hello = link->receive(Clock::now() + kHello);
    if (!hello.ok() || !is_hello(*hello)) continue;  // none of ours
    const std::string version = hello->at("gradrail bench");
    const uint32_t rank = hello->at("rank");
    std::string why;
    if (version != build_version()) why = fmt::format("it is {}, rank 0 is {}", version, build_version());
    if (hello->value("size", 0u) != place.size)
      why = fmt::format("it has {} ranks, rank 0 has {}", hello->value("size", 0u), place.size);
    if (why.empty() && (rank >= place.size || coordinator->members_[rank] != nullptr)) why = "there is another one";
    // An empty reason admits the rank.
    link->send({{"refused", why}}, Clock::now() + kHello).IgnoreError();
    // The address by which others reach this host; those on it may use its own name for itself.
    const std::string reached_at = link->local_host();
    const bool loopback = coordinator->bind_host_.starts_with("127.") || coordinator->bind_host_ == "::1";
    if (bind_host.empty() && place.by_launcher && (coordinator->bind_host_.empty() || loopback))
      coordinator->bind_host_ = reached_at;
    if (!why.empty()) return absl::FailedPreconditionError(fmt::format("rank {}: {}", rank, why));
    coordinator->members_[rank] = std::make_unique<RemoteMember>(*std::move(link), fmt::format("rank {}", rank));
    topology::CpuSet cpus;
    for (const int cpu : hello->at("cpus")) cpus.insert(cpu);
    coordinator->count(hello->at("host"), cpus, rank);
  }
  return coordinator;
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
  absl::StatusOr<ps::JsonLink> link = ps::JsonLink::connect(place.rendezvous, Clock::now() + kGather);
  if (!link.ok()) return link.status();
  GRADRAIL_RETURN_IF_ERROR(link->send(hello_of(place), Clock::now() + kHello));
  const absl::StatusOr<nlohmann::json> welcome = link->receive(Clock::now() + kGather);
  if (!welcome.ok())
    return absl::UnavailableError(fmt::format("rank 0 at {} {}", place.rendezvous, message_of(welcome.status())));
  if (const std::string why = welcome->value("refused", ""); !why.empty())
    return absl::FailedPreconditionError(
        fmt::format("rank 0 at {} refused rank {}: {}", place.rendezvous, place.rank, why));
  const std::string host = bind_host.empty() ? link->local_host() : bind_host;
  std::unique_ptr<SharedPage> page;
  std::unique_ptr<LocalMember> member;
  while (true) {
    const absl::StatusOr<nlohmann::json> request = link->receive(TimePoint::max());
    if (!request.ok()) return absl::UnavailableError(fmt::format("rank 0 at {} was lost", place.rendezvous));
    try {
      if (request->at("do") == "end") return absl::OkStatus();
      GRADRAIL_RETURN_IF_ERROR(link->send(answer(*request, host, page, member), Clock::now() + kShort));
    } catch (const nlohmann::json::exception&) {
      return absl::FailedPreconditionError(fmt::format("rank 0 at {} speaks another protocol", place.rendezvous));
    }
  }
}

}  // namespace gradrail::bench
