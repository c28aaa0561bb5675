#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <tuple>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "tools/doctor/facts/read.h"
#include "tools/doctor/table.h"

namespace gradrail::tools::doctor {
namespace {

using testing::HasSubstr;

Check judge_tasks(const Machine& machine) {
  for (const CheckTable& table : check_tables())
    if (table.name == "tasks") return judge(table, machine);
  ADD_FAILURE() << "no check tasks";
  return {};
}

Check check_tasks(const std::vector<std::string>& servers) {
  Machine machine;
  read_servers(servers, machine);
  return judge_tasks(machine);
}

/// A port of this host, with or without a listener.
class Port {
 public:
  explicit Port(bool listens) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof(address);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), bytes), 0);
    if (listens) {
      EXPECT_EQ(listen(fd_, 8), 0);
    }
    getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &bytes);
    number_ = ntohs(address.sin_port);
    name_ = fmt::format("127.0.0.1:{}", number_);
  }
  ~Port() { close(fd_); }
  const std::string& name() const { return name_; }
  uint16_t number() const { return number_; }

 private:
  int fd_;
  uint16_t number_ = 0;
  std::string name_;
};

TEST(Tasks, ReportsTasksThatDoNotAnswer) {
  const Port open(true), shut(false);
  const Check check = check_tasks({open.name(), shut.name()});
  EXPECT_EQ(check.state, State::missing);
  ASSERT_EQ(check.evidence.size(), 2u);
  EXPECT_THAT(check.evidence[0], HasSubstr(shut.name() + ": Connection refused"));
  EXPECT_THAT(check.evidence[1], HasSubstr(open.name() + ": connected"));
  EXPECT_THAT(check.remedy, HasSubstr("gradrail train --job_name ps"));
}

TEST(Tasks, AllThereIsOk) {
  const Port first(true), second(true);
  EXPECT_EQ(check_tasks({first.name(), second.name()}).state, State::ok);
  EXPECT_EQ(check_tasks({}).state, State::not_applicable);
}

/// "localhost" often stands for ::1 and 127.0.0.1, and a ps may listen at one of them.
TEST(Tasks, EachAddressOfANameIsTried) {
  const Port open(true);
  const Check check = check_tasks({fmt::format("localhost:{}", open.number())});
  EXPECT_EQ(check.state, State::ok) << check.evidence.front();
}

TEST(Tasks, ANameThatDoesNotExistIsSaid) {
  const Check check = check_tasks({"no-such-host.invalid:2222"});
  EXPECT_EQ(check.state, State::broken);
  EXPECT_THAT(check.remedy, HasSubstr("getent hosts no-such-host.invalid"));
}

TEST(Tasks, ABacklogThatIsFullDoesNotHoldItUp) {
  // Listens, but its queue is full: a SYN more is dropped, as a firewall does.
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
  socklen_t bytes = sizeof(address);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), bytes), 0);
  ASSERT_EQ(listen(listener, 0), 0);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &bytes);
  std::vector<int> fillers;
  for (int i = 0; i < 3; ++i) {
    fillers.push_back(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    std::ignore = connect(fillers.back(), reinterpret_cast<sockaddr*>(&address), bytes);
    if (i > 0) continue;
    pollfd connected{.fd = fillers.back(), .events = POLLOUT, .revents = 0};
    ASSERT_EQ(poll(&connected, 1, -1), 1);  // it is in the queue, which has no room for another one
  }
  const Check check = check_tasks({fmt::format("127.0.0.1:{}", ntohs(address.sin_port))});
  EXPECT_EQ(check.state, State::broken) << check.evidence.front();
  EXPECT_THAT(check.evidence.front(), HasSubstr("firewall drops"));
  for (const int each : fillers) close(each);
  close(listener);
}

TEST(Tasks, OtherErrorsNameRouteAndFirewalls) {
  Machine machine;
  machine.servers = {server_facts("h:1", "unreached No route to host")};
  const Check check = judge_tasks(machine);
  EXPECT_EQ(check.state, State::broken);
  EXPECT_THAT(check.evidence.front(), HasSubstr("h:1: No route to host"));
  EXPECT_THAT(check.remedy, HasSubstr("ip route get h"));
  EXPECT_THAT(check.remedy, HasSubstr("--add-port=1/tcp"));
}

}  // namespace
}  // namespace gradrail::tools::doctor
