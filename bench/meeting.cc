#include "bench/meeting.h"

#include <sched.h>

#include <algorithm>

#include "base/status.h"
#include "bench/link.h"
#include "bench/load_json.h"
#include "bench/versions.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "ps/cluster_spec.h"
#include "transport/registry.h"

namespace gradrail::bench {
namespace {

constexpr Duration kGather = std::chrono::seconds(60);
constexpr Duration kHello = std::chrono::seconds(2);
constexpr Duration kShort = std::chrono::seconds(10);

uint32_t usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? static_cast<uint32_t>(CPU_COUNT(&set)) : 1;
}

/// A request and its answer: {"failed": why} is one, too.
class RemoteMember final : public Member {
 public:
  RemoteMember(Link link, std::string name) : link_(std::move(link)), name_(std::move(name)) {}

  absl::StatusOr<std::string> serve(const ExchangeLoad& load, uint32_t task, TimePoint deadline) override {
    const absl::StatusOr<nlohmann::json> answer =
        ask({{"do", "serve"}, {"task", task}, {"load", to_json(load)}}, deadline);
    if (!answer.ok()) return answer.status();
    if (!answer->contains("address")) return absl::UnavailableError(answer->value("failed", "did not start"));
    return answer->at("address").get<std::string>();
  }

  void work(const ExchangeLoad& load, uint32_t task) override {
    // What is wrong with it collect() will tell.
    ask({{"do", "work"}, {"task", task}, {"load", to_json(load)}}, Clock::now() + kShort).IgnoreError();
  }

  absl::StatusOr<nlohmann::json> collect(TimePoint deadline) override {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    const absl::StatusOr<nlohmann::json> answer =
        ask({{"do", "collect"}, {"within_ms", std::max<int64_t>(0, left)}}, deadline + kShort);
    if (!answer.ok()) return answer.status();
    if (answer->contains("ended")) return absl::UnavailableError(answer->at("ended").get<std::string>());
    return *answer;
  }

  void abandon() override { ask({{"do", "abandon"}}, Clock::now() + kShort).IgnoreError(); }

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

  Link link_;
  const std::string name_;
  absl::Status lost_;
};

nlohmann::json hello_of(const Place& place) {
  return {{"gradrail bench", version_text()},
          {"rank", place.rank},
          {"size", place.size},
          {"host", transport::host_id()},
          {"cpus", usable_cpus()}};
}

/// One request of rank 0.
nlohmann::json answer(const nlohmann::json& request, const std::string& bind_host, std::unique_ptr<SharedPage>& page,
                      std::unique_ptr<LocalMember>& member) {
  const std::string what = request.at("do");
  if (what == "abandon") {
    member.reset();
    return nlohmann::json::object();
  }
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
  member = std::make_unique<LocalMember>(*page->get());
  ExchangeLoad load = load_from(request.at("load"));
  load.bind_host = bind_host;
  const uint32_t task = request.at("task");
  if (what == "serve") {
    const absl::StatusOr<std::string> address = member->serve(load, task, Clock::now() + kStartUp);
    if (!address.ok()) return {{"failed", std::string(message_of(address.status()))}};
    return {{"address", *address}};
  }
  page->get()->iterations = load.iterations;
  member->work(load, task);
  return nlohmann::json::object();
}

}  // namespace

Meeting::~Meeting() = default;

void Meeting::count(const std::string& host, uint32_t cpus, uint32_t rank) {
  auto known = std::find_if(hosts_.begin(), hosts_.end(), [&](const auto& one) { return one.first == host; });
  if (known == hosts_.end()) known = hosts_.insert(known, {host, Host{.cpus = cpus}});
  rank < place_.servers ? ++known->second.servers : ++known->second.workers;
}

absl::StatusOr<std::unique_ptr<Meeting>> Meeting::open(const Place& place, const std::string& bind_host) {
  absl::StatusOr<Listener> listener = Listener::open(place.meet);
  if (!listener.ok()) return listener.status();
  std::unique_ptr<Meeting> meeting(new Meeting);
  meeting->place_ = place;
  meeting->bind_host_ = bind_host.empty() ? ps::parse_host_port(place.meet).value_or(ps::HostPort{}).host : bind_host;
  if (meeting->page_.get() == nullptr) return absl::ResourceExhaustedError("no memory");
  meeting->members_.resize(place.size);
  meeting->members_[0] = std::make_unique<LocalMember>(*meeting->page_.get());
  meeting->count(transport::host_id(), usable_cpus(), 0);
  const TimePoint deadline = Clock::now() + kGather;
  const auto missing = [&] {
    std::vector<size_t> ranks;
    for (size_t i = 0; i < meeting->members_.size(); ++i)
      if (meeting->members_[i] == nullptr) ranks.push_back(i);
    return ranks;
  };
  while (!missing().empty()) {
    absl::StatusOr<Link> link = listener->accept(deadline);
    if (!link.ok()) {
      return absl::DeadlineExceededError(fmt::format("rank {} did not come to {} within {} s",
                                                     fmt::join(missing(), ", "), place.meet,
                                                     kGather / std::chrono::seconds(1)));
    }
    const absl::StatusOr<nlohmann::json> hello = link->receive(Clock::now() + kHello);
    if (!hello.ok() || !hello->contains("gradrail bench")) continue;  // none of ours
    const std::string version = hello->value("gradrail bench", "");
    const uint32_t rank = hello->value("rank", 0u);
    std::string why;
    if (version != version_text()) why = fmt::format("it is {}, rank 0 is {}", version, version_text());
    if (hello->value("size", 0u) != place.size)
      why = fmt::format("it knows of {} ranks, rank 0 of {}", hello->value("size", 0u), place.size);
    if (why.empty() && (rank >= place.size || meeting->members_[rank] != nullptr)) why = "there is another one";
    link->send({{"refused", why}}, Clock::now() + kHello).IgnoreError();
    if (!why.empty()) return absl::FailedPreconditionError(fmt::format("rank {}: {}", rank, why));
    meeting->members_[rank] = std::make_unique<RemoteMember>(*std::move(link), fmt::format("rank {}", rank));
    meeting->count(hello->value("host", ""), hello->value("cpus", 1u), rank);
  }
  return meeting;
}

std::vector<Member*> Meeting::servers() const {
  std::vector<Member*> list;
  for (uint32_t i = 0; i < place_.servers; ++i) list.push_back(members_[i].get());
  return list;
}

std::vector<Member*> Meeting::workers() const {
  std::vector<Member*> list;
  for (uint32_t i = place_.servers; i < place_.size; ++i) list.push_back(members_[i].get());
  return list;
}

bool Meeting::crowded(uint32_t shards) const {
  return std::any_of(hosts_.begin(), hosts_.end(), [&](const auto& host) {
    return host.second.workers + host.second.servers * shards > host.second.cpus;
  });
}

absl::StatusOr<int> attend(const Place& place, const std::string& bind_host) {
  absl::StatusOr<Link> link = Link::connect(place.meet, Clock::now() + kGather);
  if (!link.ok()) return link.status();
  GRADRAIL_RETURN_IF_ERROR(link->send(hello_of(place), Clock::now() + kHello));
  const absl::StatusOr<nlohmann::json> welcome = link->receive(Clock::now() + kGather);
  if (!welcome.ok())
    return absl::UnavailableError(fmt::format("rank 0 at {} {}", place.meet, message_of(welcome.status())));
  if (const std::string why = welcome->value("refused", ""); !why.empty())
    return absl::FailedPreconditionError(fmt::format("rank 0 at {} refused rank {}: {}", place.meet, place.rank, why));
  const std::string host = bind_host.empty() ? link->local_host() : bind_host;
  std::unique_ptr<SharedPage> page;
  std::unique_ptr<LocalMember> member;
  while (true) {
    const absl::StatusOr<nlohmann::json> request = link->receive(TimePoint::max());
    if (!request.ok()) return 0;  // the run is over; rank 0 says how it went
    try {
      if (!link->send(answer(*request, host, page, member), Clock::now() + kShort).ok()) return 0;
    } catch (const nlohmann::json::exception&) {
      return absl::FailedPreconditionError(fmt::format("rank 0 at {} speaks another protocol", place.meet));
    }
  }
}

}  // namespace gradrail::bench
