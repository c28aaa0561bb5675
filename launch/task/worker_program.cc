#include "launch/task/worker_program.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/log.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "gradrail/cluster.h"
#include "launch/launcher/launcher.h"
#include "launch/task/backup_ps.h"
#include "launch/task/signal_thread.h"

namespace gradrail::launch {
namespace {

constexpr int kNoSuchProgram = 127;  // the code of shells

/// The ranks of a launcher include the ps tasks. A program that reads them is one of the workers.
void count_workers_only(const TaskOptions& options) {
  std::vector<std::string> hosts;
  for (const std::string& worker : options.cluster.workers) hosts.push_back(host_of(worker));
  for (const auto& [name, value] :
       worker_variables([](const char* variable) -> const char* { return std::getenv(variable); }, options.task.index,
                        hosts, host_of(options.cluster.ps.front())))
    setenv(name.c_str(), value.c_str(), 1);
}

void set_variables(const TaskOptions& options) {
  std::vector<std::string> workers = options.cluster.workers;
  // Names only: nothing connects to a worker. Launchers give hosts without ports, and the names must differ.
  for (size_t i = 0; i < workers.size(); ++i) {
    const absl::StatusOr<HostPort> name = parse_host_port(workers[i]);
    workers[i] = to_string({.host = name.ok() ? name->host : "localhost", .port = static_cast<uint16_t>(i + 1)});
  }
  const auto set = [](const char* name, const std::string& value) {
    if (value.empty()) {
      unsetenv(name);
    } else {
      setenv(name, value.c_str(), 1);
    }
  };
  set("GRADRAIL_PS_HOSTS", fmt::format("{}", fmt::join(without_backups(options).ps, ",")));
  set("GRADRAIL_BACKUP_HOSTS", fmt::format("{}", fmt::join(backups(options), ",")));
  set("GRADRAIL_WORKER_HOSTS", fmt::format("{}", fmt::join(workers, ",")));
  set("GRADRAIL_TASK_INDEX", std::to_string(options.task.index));
  const Security& security = options.security;
  set("GRADRAIL_SECRET_FILE", options.secret_file);
  set("GRADRAIL_TRUSTED_CA_FILE", security.trusted_ca_file);
  set("GRADRAIL_CERT_FILE", security.cert_file);
  set("GRADRAIL_KEY_FILE", security.key_file);
  set("GRADRAIL_ENCRYPT_DATA", security.encrypt_data ? "1" : "");
  set("GRADRAIL_INSECURE", security.insecure ? "1" : "");
  set("GRADRAIL_JOIN_TIMEOUT", std::to_string(options.join_timeout_seconds));
  set("GRADRAIL_REJOIN_TIMEOUT",
      options.max_restarts > 0 || !options.local ? std::to_string(options.rejoin_timeout_s) : "");
  if (options.launch.has_value()) count_workers_only(options);
  // Python writes to a pipe in blocks. Then a line would appear after minutes, or never if the program is killed.
  setenv("PYTHONUNBUFFERED", "1", 0);
}

}  // namespace

void become_worker_program(const TaskOptions& options) {
  const std::vector<std::string>& command = options.program;
  set_variables(options);
  const sigset_t blocked = taken_signals();
  sigprocmask(SIG_UNBLOCK, &blocked, nullptr);
  std::signal(SIGXFSZ, SIG_DFL);  // this program alone ignores it
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  const bool is_name = errno == ENOENT && command[0].find('/') == std::string::npos;  // execvp() searches in PATH
  std::string why = is_name ? "no such program in PATH" : std::strerror(errno);
  std::string remedy = "; check its name";
  struct stat found {};
  if (stat(command[0].c_str(), &found) == 0 && S_ISDIR(found.st_mode)) {
    why = "is a directory";
    remedy = "; name a program in it";
  } else if (access(command[0].c_str(), F_OK) == 0) {
    remedy = fmt::format("; to run this file, give its interpreter, as in `python3 {}`", command[0]);
  }
  print_text(stderr, "gradrail: cannot run {}: {}{}\n", command[0], why, remedy);
  std::fflush(stderr);
  _exit(kNoSuchProgram);
}

}  // namespace gradrail::launch
