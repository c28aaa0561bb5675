#include "bench/meeting.h"

#include <algorithm>

#include "base/status.h"
#include "bench/cpus.h"
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
constexpr Duration kHello = std::chrono::milliseconds(500);  // sent at once; whoever is silent keeps the others waiting
constexpr Duration kShort = std::chrono::seconds(10);

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

  absl::Status work(const ExchangeLoad& load, uint32_t task) override {
    return ask({{"do", "work"}, {"task", task}, {"load", to_json(load)}}, Clock::now() + kShort).status();
  }

  bool is_done(Duration patience) override {
    const auto millis = std::chrono::duration_cast<std::chrono::milliseconds>(patience).count();
    const absl::StatusOr<nlohmann::json> answer = ask({{"do", "wait"}, {"within_ms", millis}}, Clock::now() + kShort);
    return !answer.ok() || answer->value("done", true);
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

  Link link_;
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
  return {{"gradrail bench", version_text()},
          {"rank", place.rank},
          {"size", place.size},
          {"host", transport::host_id()},
          {"cpus", usable_cpus().to_vector()}};
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
  member->work(load, task).IgnoreError();  // a fork that fails is told by collect()
  return nlohmann::json::object();
}

}  // namespace

Meeting::~Meeting() = default;

void Meeting::count(const std::string& host, const topology::CpuSet& cpus, uint32_t rank) {
  Host& known = hosts_[host];
  known.cpus = known.cpus | cpus;  // launchers bind each rank to cores of its own
  ++(rank < place_.servers ? known.servers : known.workers);
}

absl::StatusOr<std::unique_ptr<Meeting>> Meeting::open(const Place& place, const std::string& bind_host) {
  const ps::HostPort meet = ps::parse_host_port(place.meet).value_or(ps::HostPort{});
  // What a host calls itself may be an address that nobody else has: where a launcher named it, any will do.
  const std::string any = meet.host.find(':') == std::string::npos ? "0.0.0.0" : "::";
  absl::StatusOr<Listener> listener =
      Listener::open(place.by_launcher ? ps::to_string({.host = any, .port = meet.port}) : place.meet);
  if (!listener.ok()) return listener.status();
  std::unique_ptr<Meeting> meeting(new Meeting);
  meeting->place_ = place;
  meeting->bind_host_ = bind_host.empty() && !place.by_launcher ? meet.host : bind_host;
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
      return absl::DeadlineExceededError(fmt::format("rank {} of {} (by {}) did not come to {} within {} s",
                                                     fmt::join(missing(), ", "), place.size, place.from, place.meet,
                                                     kGather / std::chrono::seconds(1)));
    }
    const absl::StatusOr<nlohmann::json> hello = link->receive(Clock::now() + kHello);
    if (!hello.ok() || !is_hello(*hello)) continue;  // none of ours
    const std::string version = hello->at("gradrail bench");
    const uint32_t rank = hello->at("rank");
    std::string why;
    if (version != version_text()) why = fmt::format("it is {}, rank 0 is {}", version, version_text());
    if (hello->value("size", 0u) != place.size)
      why = fmt::format("it knows of {} ranks, rank 0 of {}", hello->value("size", 0u), place.size);
    if (why.empty() && (rank >= place.size || meeting->members_[rank] != nullptr)) why = "there is another one";
    link->send({{"refused", why}}, Clock::now() + kHello).IgnoreError();
    // The address by which others reach this host; those on it may use its own name for itself.
    const std::string reached_at = link->local_host();
    const bool loopback = meeting->bind_host_.starts_with("127.") || meeting->bind_host_ == "::1";
    if (bind_host.empty() && place.by_launcher && (meeting->bind_host_.empty() || loopback))
      meeting->bind_host_ = reached_at;
    if (!why.empty()) return absl::FailedPreconditionError(fmt::format("rank {}: {}", rank, why));
    meeting->members_[rank] = std::make_unique<RemoteMember>(*std::move(link), fmt::format("rank {}", rank));
    topology::CpuSet cpus;
    for (const int cpu : hello->at("cpus")) cpus.insert(cpu);
    meeting->count(hello->at("host"), cpus, rank);
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
    return host.second.workers + host.second.servers * shards > static_cast<uint32_t>(host.second.cpus.count());
  });
}

absl::Status attend(const Place& place, const std::string& bind_host) {
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
    if (!request.ok()) return absl::UnavailableError(fmt::format("rank 0 at {} was lost", place.meet));
    try {
      if (request->at("do") == "end") return absl::OkStatus();
      GRADRAIL_RETURN_IF_ERROR(link->send(answer(*request, host, page, member), Clock::now() + kShort));
    } catch (const nlohmann::json::exception&) {
      return absl::FailedPreconditionError(fmt::format("rank 0 at {} speaks another protocol", place.meet));
    }
  }
}

}  // namespace gradrail::bench
