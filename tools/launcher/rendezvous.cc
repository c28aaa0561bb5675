#include "tools/launcher/rendezvous.h"

#include "base/status.h"
#include "bench/link.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "tools/launcher/seating.h"

namespace gradrail::tools {
namespace {

using bench::Link;
using bench::Listener;
using nlohmann::json;

constexpr Duration kHello = std::chrono::seconds(2);  // sent at once; whoever is silent keeps the others waiting
constexpr Duration kBetweenWords = std::chrono::seconds(10);
constexpr uint32_t kHelloBytes = 16 << 10;  // a stranger gets no more of our memory

std::vector<std::string> with_ports(const std::vector<std::string>& hosts, const std::vector<uint16_t>& ports) {
  std::vector<std::string> addresses;
  for (size_t i = 0; i < hosts.size(); ++i) addresses.push_back(ps::to_string({.host = hosts[i], .port = ports[i]}));
  return addresses;
}

/// Where everybody comes to: ps/0, or the scheduler.
class Host final : public Rendezvous {
 public:
  explicit Host(const Attendance& attendance)
      : attendance_(attendance), ours_(hello_of(attendance)), seating_(ours_.size, ours_.ps_count) {}

  absl::Status gather();
  absl::Status publish(uint16_t port) override;
  absl::StatusOr<std::vector<std::string>> ps_addresses() override {
    return absl::FailedPreconditionError("only workers ask for addresses");
  }

 private:
  struct Guest {
    Link link;
    ps::TaskId task;
  };
  bool has_a_seat() const { return ours_.role == ps::Launch::Role::by_rank; }
  absl::StatusOr<Listener> listen() const;
  absl::Status admit(Link link);
  absl::Status seat_all();
  std::string waiting_for() const {
    return fmt::format("{} of {} at {}", fmt::join(seating_.missing(), ", "), ours_.job, attendance_.launch.meet);
  }

  const Attendance attendance_;
  const Hello ours_;
  Seating seating_;
  std::vector<Guest> guests_;
};

absl::StatusOr<Listener> Host::listen() const {
  const ps::HostPort meet = ps::parse_host_port(attendance_.launch.meet).value_or(ps::HostPort{});
  // What a host calls itself may be an address that nobody else has: any will do, unless all are here.
  const bool loopback = meet.host.starts_with("127.") || meet.host == "::1" || meet.host == "localhost";
  absl::StatusOr<Listener> both = Listener::open(ps::to_string({loopback ? meet.host : "::", meet.port}));
  if (both.ok()) return both;
  absl::StatusOr<Listener> listener =  // of a host without IPv6
      Listener::open(ps::to_string({loopback ? meet.host : "0.0.0.0", meet.port}));
  if (listener.ok()) return listener;
  return absl::FailedPreconditionError(
      fmt::format("{}: where the tasks of {} were to meet; choose another port for all of them with --meet HOST:PORT",
                  message_of(listener.status()), ours_.job));
}

/// Errors  FAILED_PRECONDITION: one of ours does not fit; strangers are merely sent away.
absl::Status Host::admit(Link link) {
  const absl::StatusOr<json> message = link.receive(Clock::now() + kHello, kHelloBytes);
  const std::optional<Hello> hello = message.ok() ? hello_from(*message) : std::nullopt;
  if (!hello) return absl::OkStatus();
  const auto refuse = [&](const std::string& why) {
    link.send({{"refused", why}}, Clock::now() + kHello).IgnoreError();
    return why;
  };
  if (hello->job != ours_.job) {
    refuse(
        fmt::format("here the tasks of {} meet, this one is of {}: give one of the two jobs another --meet HOST:PORT",
                    ours_.job, hello->job));
    return absl::OkStatus();
  }
  std::string why;
  if (hello->ps_count != ours_.ps_count)
    why = fmt::format("--ps {} there, --ps {} here", hello->ps_count, ours_.ps_count);
  if (hello->size != ours_.size)
    why = fmt::format("it knows of {} tasks, the first one of {}", hello->size, ours_.size);
  if (hello->version != ours_.version) why = fmt::format("it is {}, the first one {}", hello->version, ours_.version);
  if (!why.empty()) return absl::FailedPreconditionError(fmt::format("{}: {}", name_of(*hello), refuse(why)));
  if (has_a_seat() && attendance_.bind_host.empty()) seating_.first_ps_reached_at(link.local_host());
  const absl::StatusOr<ps::TaskId> task = seating_.take(*hello);
  if (task.ok()) {
    guests_.push_back({std::move(link), *task});
  } else {
    attendance_.say(
        fmt::format("{} was sent away: {}", name_of(*hello), refuse(std::string(message_of(task.status())))));
  }
  return absl::OkStatus();
}

absl::Status Host::seat_all() {
  for (Guest& guest : guests_) {
    // A worker that is gone already is awaited by the ps, as any other.
    const absl::Status sent = guest.link.send(to_json(seating_.seat_of(guest.task)), Clock::now() + kHello);
    if (!sent.ok() && guest.task.job == "ps")
      return absl::UnavailableError(fmt::format("ps/{} {}", guest.task.index, message_of(sent)));
  }
  if (has_a_seat()) seat_ = seating_.seat_of({"ps", 0});
  return absl::OkStatus();
}

absl::Status Host::gather() {
  absl::StatusOr<Listener> listener = listen();
  if (!listener.ok()) return listener.status();
  if (has_a_seat()) GRADRAIL_RETURN_IF_ERROR(seating_.take(ours_).status());
  const TimePoint deadline = Clock::now() + attendance_.patience;
  const size_t expected = ours_.size - (has_a_seat() ? 1 : 0);
  while (guests_.size() < expected) {
    const bool over = Clock::now() >= deadline;
    absl::StatusOr<Link> link = listener->accept(std::min(deadline, Clock::now() + kBetweenWords));
    if (link.ok()) {
      GRADRAIL_RETURN_IF_ERROR(admit(*std::move(link)));
    } else if (over) {
      return absl::DeadlineExceededError(
          fmt::format("{} did not come within {} s", waiting_for(), attendance_.patience / std::chrono::seconds(1)));
    } else {
      attendance_.say(fmt::format("waiting for {}", waiting_for()));
    }
  }
  return seat_all();
}

absl::Status Host::publish(uint16_t port) {
  const TimePoint deadline = Clock::now() + attendance_.patience;
  std::vector<uint16_t> ports(ours_.ps_count, port);
  for (Guest& guest : guests_) {
    if (guest.task.job != "ps") continue;
    const absl::StatusOr<json> told = guest.link.receive(deadline, kHelloBytes);
    if (!told.ok())
      return absl::UnavailableError(
          fmt::format("ps/{} {} before it listened", guest.task.index, message_of(told.status())));
    const auto number = told->find("port");
    if (number != told->end() && number->is_number_unsigned()) ports[guest.task.index] = number->get<uint16_t>();
  }
  const json answer{{"addresses", with_ports(seating_.seat_of({"ps", 0}).ps_hosts, ports)}};
  for (Guest& guest : guests_) guest.link.send(answer, Clock::now() + kHello).IgnoreError();
  guests_.clear();
  return absl::OkStatus();
}

/// Everybody else.
class Visitor final : public Rendezvous {
 public:
  explicit Visitor(const Attendance& attendance) : attendance_(attendance) {}

  absl::Status arrive();
  absl::Status publish(uint16_t port) override {
    return lost(link_->send({{"port", port}}, Clock::now() + attendance_.patience));
  }
  absl::StatusOr<std::vector<std::string>> ps_addresses() override;

 private:
  absl::Status lost(const absl::Status& status) const {
    if (status.ok()) return status;
    return absl::UnavailableError(fmt::format("the first task of {} at {} {}", attendance_.launch.job,
                                              attendance_.launch.meet, message_of(status)));
  }
  absl::Status connect(TimePoint deadline);

  const Attendance attendance_;
  std::unique_ptr<Link> link_;
};

absl::Status Visitor::connect(TimePoint deadline) {
  const ps::Launch& launch = attendance_.launch;
  while (true) {
    const TimePoint until = std::min(deadline, Clock::now() + kBetweenWords);
    absl::StatusOr<Link> link = Link::connect(launch.meet, until);
    if (link.ok()) {
      link_ = std::make_unique<Link>(*std::move(link));
      return absl::OkStatus();
    }
    const std::string why(message_of(link.status()));
    if (!absl::IsDeadlineExceeded(link.status()))
      return absl::InvalidArgumentError(fmt::format(
          "the tasks of {} cannot meet: {}; name the host of the first one with --meet HOST:PORT", launch.job, why));
    if (until == deadline)
      return absl::DeadlineExceededError(fmt::format("the first task of {} did not come: {}", launch.job, why));
    attendance_.say(fmt::format("waiting for the first task of {}: {}", launch.job, why));
  }
}

absl::Status Visitor::arrive() {
  const TimePoint deadline = Clock::now() + attendance_.patience;
  GRADRAIL_RETURN_IF_ERROR(connect(deadline));
  Hello hello = hello_of(attendance_);
  if (hello.address.empty()) hello.address = link_->local_host();
  GRADRAIL_RETURN_IF_ERROR(lost(link_->send(to_json(hello), Clock::now() + kHello)));
  const absl::StatusOr<json> answer = link_->receive(deadline + kBetweenWords);
  if (!answer.ok()) return lost(answer.status());
  if (const auto why = answer->find("refused"); why != answer->end() && why->is_string())
    return absl::FailedPreconditionError(fmt::format("the first task at {} refused {}: {}", attendance_.launch.meet,
                                                     name_of(hello), why->get<std::string>()));
  std::optional<Seat> seat = seat_from(*answer);
  if (!seat) return lost(absl::InvalidArgumentError("speaks another protocol"));
  seat_ = *std::move(seat);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> Visitor::ps_addresses() {
  const absl::StatusOr<json> answer = link_->receive(Clock::now() + attendance_.patience + kBetweenWords);
  if (!answer.ok()) return lost(answer.status());
  const auto list = answer->find("addresses");
  std::vector<std::string> addresses;
  if (list != answer->end() && list->is_array()) {
    for (const json& each : *list) addresses.push_back(each.is_string() ? each.get<std::string>() : "");
  }
  if (addresses.size() != attendance_.ps_count) return lost(absl::InvalidArgumentError("speaks another protocol"));
  return addresses;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Rendezvous>> Rendezvous::meet(const Attendance& attendance) {
  const ps::Launch& launch = attendance.launch;
  const bool hosts =
      launch.role == ps::Launch::Role::scheduler || (launch.role == ps::Launch::Role::by_rank && launch.rank == 0u);
  if (hosts) {
    auto host = std::make_unique<Host>(attendance);
    GRADRAIL_RETURN_IF_ERROR(host->gather());
    return host;
  }
  auto visitor = std::make_unique<Visitor>(attendance);
  GRADRAIL_RETURN_IF_ERROR(visitor->arrive());
  return visitor;
}

}  // namespace gradrail::tools
