#include "launch/launcher/launcher.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/net_address.h"
#include "base/parse_number.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gradrail/cluster.h"

namespace gradrail::launch {
namespace {

using Found = absl::StatusOr<std::optional<Launch>>;

/// The variables of one launcher.
class Reader {
 public:
  explicit Reader(const Variables& variable) : variable_(variable) {}

  std::string text(const char* name) const {
    const char* const value = variable_(name);
    return value == nullptr ? "" : value;
  }
  bool has(const char* name) const { return !text(name).empty(); }

  /// Errors  INVALID_ARGUMENT: not set, or not a number up to `most`.
  absl::StatusOr<uint32_t> number(const char* name, uint32_t most) const {
    const std::string value = text(name);
    if (value.empty()) return absl::InvalidArgumentError(fmt::format("{} is not set", name));
    const std::optional<uint32_t> found = parse_number<uint32_t>(value);
    if (!found || *found > most)
      return absl::InvalidArgumentError(fmt::format("{}={} is not a number from 0 to {}", name, value, most));
    return *found;
  }

 private:
  const Variables& variable_;
};

constexpr const char* kPmixHost = "the host of rank 0 in PMIx";
// The limits of --ps and of workers together.
constexpr uint32_t kMostTasks = kMaxWorkers + 64;

/// Port of a job. The name of the job selects it, so that two jobs on one host rarely collide. The range is below the
/// ports that the kernel gives to outgoing connections.
uint16_t port_of(std::string_view job) {
  uint32_t hash = 2166136261;  // FNV-1a: every process must compute the same port, which std::hash does not promise
  for (const char c : job) hash = (hash ^ static_cast<uint8_t>(c)) * 16777619;
  // Linux assigns ports from 32768 on (net.ipv4.ip_local_port_range).
  return static_cast<uint16_t>(20000 + hash % 12000);
}

/// "" without a host. Errors  INVALID_ARGUMENT: `variable` has no host; a task would find that out at its first call.
absl::StatusOr<std::string> address(const char* variable, const std::string& host, uint16_t port) {
  if (host.empty()) return std::string();
  std::string text = to_string({.host = host, .port = port});
  const absl::StatusOr<HostPort> parsed = parse_host_port(text);
  if (parsed.ok()) return text;
  return absl::InvalidArgumentError(fmt::format("{}: {}", variable, message_of(parsed.status())));
}

/// Rank and size, which belong together. Nothing for a single process: it starts the tasks that it needs itself.
Found ranks(const Reader& read, const char* rank_name, const char* size_name, const std::string& launcher) {
  // A single one of the two remains from an earlier shell, or a user has set it.
  const auto both = [&](const absl::Status& status) {
    return absl::InvalidArgumentError(fmt::format("{}: {} ({} sets {} and {} together: unset a leftover variable)",
                                                  launcher, message_of(status), launcher, rank_name, size_name));
  };
  const absl::StatusOr<uint32_t> rank = read.number(rank_name, kMostTasks - 1),
                                 size = read.number(size_name, kMostTasks);
  if (!rank.ok()) return both(rank.status());
  if (!size.ok()) return both(size.status());
  if (*rank >= *size)
    return both(
        absl::InvalidArgumentError(fmt::format("{}={} is not less than {}={}", rank_name, *rank, size_name, *size)));
  if (*size == 1) return std::nullopt;
  return Launch{.rank = *rank, .size = *size};
}

Found from_torchrun(const Reader& read) {
  Found launch = ranks(read, "RANK", "WORLD_SIZE", "torchrun");
  if (!launch.ok() || !launch->has_value()) return launch;
  const std::string run = read.text("TORCHELASTIC_RUN_ID");
  // torchrun writes "none" where the user gave no --rdzv-id.
  (*launch)->job = run.empty() || run == "none" ? "torchrun" : fmt::format("torchrun {}", run);
  uint32_t port = port_of((*launch)->job);
  if (read.has("MASTER_PORT")) {
    GRADRAIL_ASSIGN_OR_RETURN(const uint32_t given_port, read.number("MASTER_PORT", UINT16_MAX - 1));
    if (given_port == 0)
      return absl::InvalidArgumentError("MASTER_PORT=0: no task can be found at port 0; give one from 1 to 65534");
    // torchrun itself listens on that port if it shares its store with the processes.
    port = read.text("TORCHELASTIC_USE_AGENT_STORE") == "True" ? given_port + 1 : given_port;
    // Two runs without an id differ by the address of their store.
    (*launch)->job += fmt::format(" {}:{}", read.text("MASTER_ADDR"), given_port);
  }
  GRADRAIL_ASSIGN_OR_RETURN((*launch)->rendezvous,
                            address("MASTER_ADDR", read.text("MASTER_ADDR"), static_cast<uint16_t>(port)));
  return launch;
}

Found from_mpirun(const Reader& read, const PmixQuery& query) {
  Found launch = ranks(read, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "mpirun");
  if (!launch.ok() || !launch->has_value()) return launch;
  // Two jobs on one host would select the same port without this name.
  const std::string space = read.text("PMIX_NAMESPACE");
  (*launch)->job = space.empty() ? "mpirun" : fmt::format("mpirun job {}", space);
  const bool one_host = read.text("OMPI_COMM_WORLD_LOCAL_SIZE") == read.text("OMPI_COMM_WORLD_SIZE");
  const std::string host = one_host ? "127.0.0.1" : read.text("MASTER_ADDR");
  GRADRAIL_ASSIGN_OR_RETURN((*launch)->rendezvous, address("MASTER_ADDR", host, port_of((*launch)->job)));
  if (!host.empty()) return launch;
  const absl::StatusOr<PmixJob> job = space.empty() ? absl::NotFoundError("PMIX_NAMESPACE is not set") : query();
  // PMIx without its server describes this process as a job of one.
  if (!job.ok() || job->size != (*launch)->size) {
    // --rendezvous can name the address.
    (*launch)->why_unknown =
        job.ok() ? fmt::format("PMIx describes a job of {} processes", job->size) : message_of(job.status());
    return launch;
  }
  GRADRAIL_ASSIGN_OR_RETURN((*launch)->rendezvous, address(kPmixHost, job->first_host, port_of((*launch)->job)));
  return launch;
}

/// Reads the facts of a launcher without variables, such as PRRTE: the environment has the rank, and the server the
/// rest.
Found from_pmix(const Reader& read, const PmixQuery& query) {
  const absl::StatusOr<uint32_t> rank = read.number("PMIX_RANK", kMostTasks - 1);
  const bool has_space = read.has("PMIX_NAMESPACE");
  const absl::StatusOr<PmixJob> job = !has_space  ? absl::InvalidArgumentError("PMIX_NAMESPACE is not set")
                                      : rank.ok() ? query()
                                                  : rank.status();
  if (!job.ok())
    return absl::InvalidArgumentError(
        fmt::format("{} indicates a launcher that serves PMIx: {} (unset a leftover variable)",
                    has_space ? "PMIX_NAMESPACE" : "PMIX_RANK", message_of(job.status())));
  if (job->size == 1) return std::nullopt;
  if (*rank >= job->size || job->size > kMostTasks)
    return absl::InvalidArgumentError(
        fmt::format("PMIX_RANK={} of {} processes is not a rank of a job of at most {}", *rank, job->size, kMostTasks));
  Launch launch{.rank = *rank, .size = job->size, .job = fmt::format("PMIx job {}", read.text("PMIX_NAMESPACE"))};
  const std::string host = job->local_size == job->size ? "127.0.0.1" : job->first_host;
  GRADRAIL_ASSIGN_OR_RETURN(launch.rendezvous, address(kPmixHost, host, port_of(launch.job)));
  return launch;
}

Found from_slurm(const Reader& read) {
  // The variables of a step: a batch script has only those of its job, and is a single process.
  Found launch = ranks(read, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "srun");
  if (!launch.ok() || !launch->has_value()) return launch;
  (*launch)->job = fmt::format("Slurm job {} step {}", read.text("SLURM_JOB_ID"), read.text("SLURM_STEP_ID"));
  (*launch)->node = read.text("SLURMD_NODENAME");
  const std::string list = read.text("SLURM_STEP_NODELIST");
  // The address stays unknown; --rendezvous can name it.
  if (list.empty()) return launch;
  const absl::StatusOr<std::vector<std::string>> nodes = expand_nodes(list);
  if (!nodes.ok())
    return absl::InvalidArgumentError(fmt::format("SLURM_STEP_NODELIST: {}", message_of(nodes.status())));
  // Rank 0 runs on the first node. The name of a single node may not resolve.
  const std::string host = nodes->size() == 1 ? "127.0.0.1" : nodes->front();
  GRADRAIL_ASSIGN_OR_RETURN((*launch)->rendezvous, address("SLURM_STEP_NODELIST", host, port_of((*launch)->job)));
  return launch;
}

// A launcher sets its rank beside its size. Without those of an MPI that is not read, MPICH for example, each of its
// processes would be the only one of its run.
constexpr std::pair<const char*, const char*> kOtherLaunchers[] = {{"PMI_RANK", "PMI_SIZE"},
                                                                   {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},
                                                                   {"DMLC_NUM_WORKER", "DMLC_ROLE"}};  // ps-lite

/// A launcher whose variables are not read. srun may set them too, and then the sizes agree.
absl::Status check_other(const Reader& read, const char* rank_name, const char* size_name, uint32_t known_size) {
  if (!read.has(rank_name) && !read.has(size_name)) return absl::OkStatus();
  const std::string value = read.text(size_name);
  const std::optional<uint32_t> size = parse_number<uint32_t>(value);
  if (size && (*size == 1 || *size == known_size)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("{}={} {}={} is of a launcher that is not known here: start the tasks by srun, Open MPI or torchrun, "
                  "or give RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT to each (unset a leftover variable)",
                  rank_name, read.text(rank_name), size_name, value));
}

}  // namespace

std::vector<std::pair<std::string, std::string>> worker_variables(const Variables& variable, uint32_t index,
                                                                  const std::vector<std::string>& hosts,
                                                                  const std::string& first_host) {
  GRADRAIL_CHECK(index < hosts.size());
  const auto same = [](const std::string& a, const std::string& b) {
    return a == b || (is_loopback_host(a) && is_loopback_host(b));
  };
  // The comparison is by host: a launcher may place neighboring ranks on different hosts.
  const auto here = [&](const std::string& host) { return same(host, hosts[index]); };
  const auto place = std::count_if(hosts.begin(), hosts.begin() + index, here);
  const auto count = std::count_if(hosts.begin(), hosts.end(), here);
  std::vector<std::string> groups;  // hosts with a worker, in the order of their first worker
  for (const std::string& host : hosts) {
    if (std::none_of(groups.begin(), groups.end(), [&](const std::string& other) { return same(other, host); }))
      groups.push_back(host);
  }
  const auto group = std::find_if(groups.begin(), groups.end(), here) - groups.begin();
  std::vector<std::pair<std::string, std::string>> found;
  const auto set = [&](const auto value, std::initializer_list<const char*> names) {
    for (const char* const name : names) {
      const char* const given = variable(name);
      if (given != nullptr && *given != '\0') found.emplace_back(name, fmt::format("{}", value));
    }
  };
  set(index, {"RANK", "ROLE_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"});
  set(hosts.size(), {"WORLD_SIZE", "ROLE_WORLD_SIZE", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS",
                     "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"});
  set(place, {"LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_NODE_RANK"});
  set(count, {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"});
  set(group, {"GROUP_RANK"});
  set(groups.size(), {"GROUP_WORLD_SIZE"});
  // torchrun's agent has its own store there. Without it rank 0 of the program listens, on the host of worker 0.
  const char* const store = variable("TORCHELASTIC_USE_AGENT_STORE");
  const bool agent_listens = store != nullptr && std::string_view(store) == "True";
  if (!agent_listens && !same(hosts.front(), first_host)) set(hosts.front(), {"MASTER_ADDR"});
  return found;
}

Found read_launcher(const Variables& variable, const PmixQuery& query) {
  const Reader read(variable);
  // From the innermost launcher outwards.
  if (read.has("RANK") || read.has("WORLD_SIZE")) return from_torchrun(read);
  if (read.has("OMPI_COMM_WORLD_RANK") || read.has("OMPI_COMM_WORLD_SIZE")) return from_mpirun(read, query);
  Found launch = std::nullopt;
  // The batch script of a job is a single process, and has the number 0 alone.
  if (read.has("SLURM_STEP_NUM_TASKS") || (read.has("SLURM_PROCID") && read.text("SLURM_PROCID") != "0")) {
    launch = from_slurm(read);
  } else if (read.has("PMIX_NAMESPACE") || read.has("PMIX_RANK")) {
    launch = from_pmix(read, query);
  }
  if (!launch.ok()) return launch;
  // These processes would be as many separate runs.
  const uint32_t size = launch->has_value() ? (*launch)->size : 1;
  for (const auto& [rank_name, size_name] : kOtherLaunchers)
    GRADRAIL_RETURN_IF_ERROR(check_other(read, rank_name, size_name, size));
  return launch;
}

Found read_launcher() {
  return read_launcher([](const char* name) -> const char* { return std::getenv(name); }, query_pmix);
}

}  // namespace gradrail::launch
