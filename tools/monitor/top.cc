#include "tools/monitor/top.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <future>
#include <thread>

#include "CLI/CLI.hpp"
#include "base/flags/text_value.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gradrail/cluster.h"
#include "launch/etcd/ps_lookup.h"
#include "ps/protocol/control.pb.h"
#include "tools/monitor/top_table.h"
#include "tools/security_flags.h"
#include "worker/client/session/control_link.h"

namespace gradrail::tools {
namespace {

constexpr int kRedrawMs = 1000;
constexpr auto kBetweenTwo = std::chrono::milliseconds(500);  // interval for rates, where one table is all

// A type that a signal handler may write (C++ standard, [support.signal]).
volatile std::sig_atomic_t asked_to_end = 0;

void on_signal(int) { asked_to_end = 1; }

/// The terminal in the mode of top; the destructor restores its former mode.
class Screen {
 public:
  Screen() {
    tcgetattr(STDIN_FILENO, &before_);
    termios raw = before_;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);  // Ctrl-C stays a signal
    // Both are zero: read() returns immediately, since poll() has already waited.
    raw.c_cc[VMIN] = 0;
    raw.c_cc[VTIME] = 0;
    tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    say("\033[?1049h\033[?25l");  // switches to another screen, without cursor
  }
  ~Screen() {
    say("\033[?25h\033[?1049l");
    tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  // Each picture is one write, from the upper left corner without clearing: the picture does not flicker.
  void draw(const std::vector<std::string>& lines) {
    winsize size{};
    const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 1;
    // A longer line would wrap, and shift all lines below it.
    const size_t columns = known ? size.ws_col : 80, rows = known ? size.ws_row : 24;
    std::string text = "\033[H";
    for (size_t i = 0; i < lines.size() && i + 1 < rows; ++i) text += lines[i].substr(0, columns) + "\033[K\r\n";
    say(text + "\033[J");
  }

  /// Waits; true when q was typed.
  bool quits(int timeout_ms) {
    pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    // A signal ends poll() early; the loop then detects it.
    if (poll(&input, 1, timeout_ms) <= 0) return false;
    char typed[64];
    const ssize_t count = read(STDIN_FILENO, typed, sizeof(typed));
    if (count <= 0) return true;  // no task is there any more
    return std::any_of(typed, typed + count, [](char c) { return c == 'q' || c == 'Q'; });
  }

 private:
  void say(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }
  termios before_{};
};

/// The cluster in the view of top.
struct Watched {
  std::vector<std::string> addresses;
  std::shared_ptr<ps::ControlDialer> dialer;
  // An entry belongs to the call of the same index, so concurrent calls need no lock.
  std::vector<std::unique_ptr<worker::ControlLink>> links;  ///< null: to be made
};

PsAnswer query_one(Watched& watched, uint32_t index, bool dump) {
  PsAnswer answer{.address = watched.addresses[index]};
  std::unique_ptr<worker::ControlLink>& control = watched.links[index];
  if (control == nullptr) {
    control = std::make_unique<worker::ControlLink>(index, answer.address, watched.dialer, nullptr, nullptr);
  }
  absl::StatusOr<ps::proto::StatsReply> stats = control->stats_for_a_watcher(dump);
  answer.at = Clock::now();
  if (stats.ok()) {
    answer.stats = *std::move(stats);
  } else {
    answer.unreachable = std::string(message_of(stats.status()));
    answer.is_final = !absl::IsUnavailable(stats.status()) && !absl::IsDeadlineExceeded(stats.status());
    // The column has the address already.
    const std::string known = control->name() + " was lost: ";
    if (answer.unreachable.starts_with(known)) answer.unreachable.erase(0, known.size());
    // The last part of gRPC's text is the cause.
    const size_t cause = answer.unreachable.rfind("Failed to connect to remote host: ");
    if (cause != std::string::npos) answer.unreachable.erase(0, cause);
  }
  return answer;
}

/// Queries all at the same time: one that does not answer delays no other.
std::vector<PsAnswer> ask(Watched& watched, bool dump) {
  std::vector<std::future<PsAnswer>> calls;
  for (uint32_t i = 0; i < watched.addresses.size(); ++i)
    calls.push_back(std::async(std::launch::async, query_one, std::ref(watched), i, dump));
  std::vector<PsAnswer> answers;
  answers.reserve(calls.size());
  for (std::future<PsAnswer>& call : calls) answers.push_back(call.get());
  return answers;
}

bool is_rendezvous(const TopFlags& flags) { return flags.cluster.find("://") != std::string::npos; }

absl::StatusOr<std::vector<std::string>> ps_addresses(const TopFlags& flags) {
  if (!flags.cluster.empty() && !flags.ps_hosts.empty())
    return absl::InvalidArgumentError("top: name the cluster once: by a file or an address, or by --ps_hosts");
  if (flags.cluster.empty() && flags.ps_hosts.empty())
    return absl::InvalidArgumentError(
        "top: name the cluster: a file, as for train --cluster, or --ps_hosts, or etcd://…");
  if (is_rendezvous(flags)) {
    const absl::StatusOr<launch::RendezvousUrl> where = launch::parse_etcd_rendezvous(flags.cluster);
    return where.ok() ? launch::find_ps(*where) : where.status();
  }
  // cluster_from_hosts() requires both lists; the entry for the workers is never used.
  GRADRAIL_ASSIGN_OR_RETURN(const ClusterSpec cluster, flags.cluster.empty()
                                                           ? cluster_from_hosts(flags.ps_hosts, "none:1")
                                                           : read_cluster_file(flags.cluster));
  return cluster.ps;
}

absl::StatusOr<Watched> watch(const TopFlags& flags) {
  GRADRAIL_ASSIGN_OR_RETURN(std::vector<std::string> addresses, ps_addresses(flags));
  Security security = flags.security;
  GRADRAIL_RETURN_IF_ERROR(read_secret(security, flags.secret_file));
  // Before the first packet: the rule that a job beyond localhost needs authentication holds here, too.
  for (const std::string& address : addresses) GRADRAIL_RETURN_IF_ERROR(ps::check_exposure(security, address));
  GRADRAIL_ASSIGN_OR_RETURN(auto dialer, worker::control_link_dialer(security, 0));
  Watched watched{.addresses = std::move(addresses), .dialer = std::move(dialer)};
  watched.links.resize(watched.addresses.size());
  return watched;
}

/// A ps may have moved; without a newer address the last one holds.
void follow(Watched& watched, const TopFlags& flags) {
  absl::StatusOr<Watched> now = watch(flags);
  // The last answer stays on errors: a short outage of etcd must not empty the screen.
  if (now.ok() && now->addresses != watched.addresses) watched = *std::move(now);
}

absl::Status show_once(Watched& watched, bool dump) {
  // Rates need two samples. Only the first requests a dump, otherwise each task would write two.
  const std::vector<PsAnswer> before = ask(watched, dump);
  std::this_thread::sleep_for(kBetweenTwo);
  const std::vector<PsAnswer> answers = ask(watched, false);
  for (const std::string& line : top_table(answers, before)) fmt::print("{}\n", line);
  std::fflush(stdout);
  if (std::any_of(answers.begin(), answers.end(), [](const PsAnswer& a) { return a.unreachable.empty(); }))
    return absl::OkStatus();
  const auto final = std::find_if(answers.begin(), answers.end(), [](const PsAnswer& a) { return a.is_final; });
  if (final != answers.end()) return absl::FailedPreconditionError(fmt::format("top: {}", final->unreachable));
  return absl::UnavailableError("top: not one parameter server answered");
}

void show_until_stopped(Watched& watched, const TopFlags& flags) {
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // The screen follows the handlers: a signal in between would leave the terminal in raw mode.
  Screen screen;
  std::vector<PsAnswer> before;
  bool dump = flags.dump;
  // The loop checks `asked_to_end` twice: the signal may arrive during the query or during the wait.
  do {
    if (is_rendezvous(flags)) follow(watched, flags);
    // Each start requests one dump, not one per second.
    std::vector<PsAnswer> answers = ask(watched, std::exchange(dump, false));
    const std::time_t now = std::time(nullptr);
    char clock[16];
    std::tm parts{};
    std::strftime(clock, sizeof(clock), "%H:%M:%S", localtime_r(&now, &parts));
    std::vector<std::string> lines = {fmt::format("gradrail top  {}  q: quit", clock), ""};
    for (std::string& line : top_table(answers, before)) lines.push_back(std::move(line));
    screen.draw(lines);
    before = std::move(answers);
  } while (asked_to_end == 0 && !screen.quits(kRedrawMs) && asked_to_end == 0);
}

}  // namespace

void add_top_flags(CLI::App& command, TopFlags& flags) {
  command.option_defaults()->group("Cluster");
  command.add_option("cluster", flags.cluster,
                     "JSON file of the cluster, as for train --cluster; or train's --rendezvous");
  command.add_option("--ps_hosts,--ps-hosts", flags.ps_hosts, "comma-separated host:port list, instead of a file")
      ->transform(accepted_by(parse_host_list));
  command.option_defaults()->group("Monitoring");
  command.add_flag("--once", flags.once, "print one table and end");
  command.add_flag("--dump", flags.dump, "also make all tasks dump their flight recorders");
  add_security_flags(command, flags.security, flags.secret_file);
}

absl::Status run_top(const TopFlags& flags) {
  GRADRAIL_ASSIGN_OR_RETURN(Watched watched, watch(flags));
  const bool terminal = isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
  // A dump from a script is one request: it prints the table once.
  if (flags.once || (flags.dump && !terminal)) return show_once(watched, flags.dump);
  if (!terminal) return absl::FailedPreconditionError("top: not a terminal (--once prints one table)");
  show_until_stopped(watched, flags);
  return absl::OkStatus();
}

}  // namespace gradrail::tools
