#include "tools/supervise/worker_program.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "tools/train/backup_ps.h"
#include "tools/train/signal_thread.h"

namespace gradrail::tools {
namespace {

constexpr int kNoSuchProgram = 127;  // the code of shells

void set_variables(const TrainOptions& options) {
  const std::vector<std::string>& ps = options.cluster.ps;
  const size_t primaries = options.flags.backup_ps > 0 ? ps.size() / 2 : ps.size();
  const auto middle = ps.begin() + static_cast<std::ptrdiff_t>(primaries);
  std::vector<std::string> workers;
  // Names only: nothing connects to a worker.
  for (size_t i = 0; i < options.cluster.workers.size(); ++i) workers.push_back(fmt::format("localhost:{}", i + 1));
  const auto set = [](const char* name, const std::string& value) {
    if (value.empty()) {
      unsetenv(name);
    } else {
      setenv(name, value.c_str(), 1);
    }
  };
  set("GRADRAIL_PS_HOSTS", fmt::format("{}", fmt::join(ps.begin(), middle, ",")));
  set("GRADRAIL_BACKUP_HOSTS", fmt::format("{}", fmt::join(middle, ps.end(), ",")));
  set("GRADRAIL_WORKER_HOSTS", fmt::format("{}", fmt::join(workers, ",")));
  set("GRADRAIL_TASK_INDEX", std::to_string(options.task.index));
  set("GRADRAIL_SECRET_FILE", options.flags.security.secret_file);
  set("GRADRAIL_REJOIN_TIMEOUT", options.flags.max_restarts > 0 ? std::to_string(options.flags.rejoin_timeout_s) : "");
}

}  // namespace

int become_worker_program(const std::vector<std::string>& command, const TrainOptions& options) {
  set_variables(options);
  const sigset_t blocked = signal_set({SIGTERM, SIGINT, SIGUSR1, kStopOfSupervisor});
  sigprocmask(SIG_UNBLOCK, &blocked, nullptr);
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  fmt::print(stderr, "gradrail: {}: {}\n", command[0], std::strerror(errno));
  return kNoSuchProgram;
}

}  // namespace gradrail::tools
