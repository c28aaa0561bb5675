#include "ps/protocol/cluster_spec.h"

#include <sys/socket.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_split.h"
#include "base/net_address.h"
#include "base/parse_number.h"
#include "base/read_file.h"
#include "base/status.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace gradrail::ps {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxClusterFileBytes = size_t{16} << 20;  // 1100 tasks take 0.1 MB

absl::Status invalid(std::string_view source, std::string_view what) {
  return absl::InvalidArgumentError(fmt::format("{}: {}", source, what));
}

/// {"1": "host:port", …}: gaps get kUnknownAddress.
absl::StatusOr<std::vector<std::string>> read_object(const Json& job, std::string_view name, std::string_view source) {
  std::vector<std::string> tasks;
  for (const auto& [key, task] : job.items()) {
    const std::optional<uint32_t> index = parse_number<uint32_t>(key);
    // "01" would be a second name of task 1.
    if (!index || std::to_string(*index) != key)
      return invalid(source, fmt::format("job '{}': '{}' is not the index of a task (0, 1, …)", name, key));
    if (!task.is_string())
      return invalid(source, fmt::format("job '{}': task {} must be a \"host:port\" string", name, key));
    // Before the list grows: the index alone must not decide how much memory is used.
    if (*index >= kMaxWorkers)
      return invalid(source, fmt::format("job '{}': task {}: the highest index is {}", name, key, kMaxWorkers - 1));
    if (tasks.size() <= *index) tasks.resize(*index + 1, kUnknownAddress);
    tasks[*index] = task.get<std::string>();
  }
  return tasks;
}

/// Addresses of one job. TensorFlow allows a list and an object of index → address.
absl::StatusOr<std::vector<std::string>> read_job(const Json& job, std::string_view name, std::string_view source) {
  if (job.is_object()) return read_object(job, name, source);
  if (!job.is_array()) return invalid(source, fmt::format("job '{}' must be a list of \"host:port\" strings", name));
  std::vector<std::string> tasks;
  for (const Json& task : job) {
    if (!task.is_string())
      return invalid(source, fmt::format("job '{}': every task must be a \"host:port\" string", name));
    tasks.push_back(task.get<std::string>());
  }
  return tasks;
}

absl::Status normalise(std::vector<std::string>& tasks, std::string_view job, std::string_view source,
                       std::set<std::string>& seen) {
  for (std::string& task : tasks) {
    if (task == kUnknownAddress) continue;
    const absl::StatusOr<HostPort> address = parse_host_port(task);
    if (!address.ok()) return invalid(source, fmt::format("job '{}': {}", job, message_of(address.status())));
    // The kernel would choose the port, and the other tasks could not find this one.
    if (address->port == 0)
      return invalid(source, fmt::format("job '{}': '{}': a task's port must not be 0", job, task));
    // One spelling for each address, so that duplicates are found.
    task = to_string(*address);
    if (!seen.insert(task).second) return invalid(source, fmt::format("address {} is given to two tasks", task));
  }
  return absl::OkStatus();
}

absl::StatusOr<ClusterSpec> checked(ClusterSpec cluster, std::string_view source) {
  if (cluster.ps.empty()) return invalid(source, "job 'ps' has no task (at least one parameter server is needed)");
  if (cluster.workers.empty()) return invalid(source, "job 'worker' has no task (at least one worker is needed)");
  // Each shard keeps an entry for every worker index.
  if (cluster.workers.size() > kMaxWorkers) return invalid(source, fmt::format("more than {} workers", kMaxWorkers));
  const auto unknown = [](const std::string& task) { return task == kUnknownAddress; };
  for (const auto& [job, tasks] : {std::pair("ps", &cluster.ps), std::pair("aggregator", &cluster.aggregators)}) {
    const auto absent = std::find_if(tasks->begin(), tasks->end(), unknown);
    if (absent != tasks->end())
      return invalid(source, fmt::format("job '{}': task {} is missing (only the workers may have gaps)", job,
                                         absent - tasks->begin()));
  }
  cluster.sparse = std::any_of(cluster.workers.begin(), cluster.workers.end(), unknown);
  std::set<std::string> seen;
  GRADRAIL_RETURN_IF_ERROR(normalise(cluster.ps, "ps", source, seen));
  GRADRAIL_RETURN_IF_ERROR(normalise(cluster.workers, "worker", source, seen));
  GRADRAIL_RETURN_IF_ERROR(normalise(cluster.aggregators, "aggregator", source, seen));
  return cluster;
}

std::vector<std::string> split_list(std::string_view list) {
  // Debian builds Abseil with a string_view of its own, which does not convert from the standard one.
  return absl::StrSplit(absl::string_view(list.data(), list.size()), ',', absl::SkipWhitespace());
}

/// Decimal or hexadecimal; "0x" is 0, as for getaddrinfo().
bool is_number(std::string_view text) {
  if (text.starts_with("0x") || text.starts_with("0X"))
    return text.find_first_not_of("0123456789abcdefABCDEF", 2) == std::string_view::npos;
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

/// "" for a name or an IPv4 address, else the mistake.
/// Source  WHATWG URL, 3.5: a host that ends in a number is an IPv4 address. getaddrinfo() takes "7" for 0.0.0.7.
std::string_view mistake_in_host(const std::string& host) {
  if (host == "*") return "0.0.0.0 and [::] stand for all addresses of a host";
  // Such characters come from a URL or from wrong quotes in a script.
  const auto is_wrong = [](unsigned char c) {
    return c <= ' ' || c == 0x7f || std::string_view("/\\\"'").find(static_cast<char>(c)) != std::string_view::npos;
  };
  if (std::any_of(host.begin(), host.end(), is_wrong)) return "a host name has no such characters";
  if (host.starts_with('-')) return "a host name begins with a letter or a digit";
  if (is_number(std::string_view(host).substr(host.rfind('.') + 1)) && !is_ip_address(host, AF_INET))
    return "a host that ends in a number must be an IPv4 address, such as 10.0.0.1";
  return "";
}

absl::StatusOr<ClusterSpec> from_jobs(const Json& jobs, std::string_view source) {
  if (!jobs.is_object()) return invalid(source, "\"cluster\" must be an object of jobs");
  // The jobs have no order: the choice of one of them would be silent.
  if (jobs.contains("chief") && jobs.contains("master"))
    return invalid(source, "jobs 'chief' and 'master' are two names of one job: keep one of them");
  ClusterSpec cluster;
  std::vector<std::string> chief;
  for (const auto& [name, job] : jobs.items()) {
    GRADRAIL_ASSIGN_OR_RETURN(std::vector<std::string> tasks, read_job(job, name, source));
    if (name == "ps") {
      cluster.ps = std::move(tasks);
    } else if (name == "worker") {
      cluster.workers = std::move(tasks);
    } else if (name == "chief" || name == "master") {
      chief = std::move(tasks);
    } else if (name == "aggregator") {
      cluster.aggregators = std::move(tasks);
    } else if (name != "evaluator") {
      // TensorFlow's evaluator takes no part in training and is ignored; any other name is a mistake.
      return invalid(source, fmt::format("unknown job '{}' (there are: ps, worker, chief, aggregator)", name));
    }
  }
  if (chief.size() > 1) return invalid(source, "job 'chief' must have one task");
  if (!chief.empty()) {
    // The chief becomes worker 0, and the others move up by one (resolve_task).
    // Before checked(), so that the chief counts in the limits and in the search for duplicates.
    cluster.workers.insert(cluster.workers.begin(), chief[0]);
    cluster.chief_job = true;
  }
  return checked(std::move(cluster), source);
}

absl::StatusOr<Json> parse_object(std::string_view text, std::string_view source) {
  try {
    Json document = Json::parse(text);
    if (!document.is_object()) return invalid(source, "must be a JSON object with the jobs \"ps\" and \"worker\"");
    return document;
  } catch (const Json::exception& error) {  // its text names the byte; no exception leaves this folder
    return invalid(source, fmt::format("not JSON: {}", error.what()));
  }
}

bool has_jobs(const Json& document) {
  return document.contains("ps") || document.contains("worker") || document.contains("chief") ||
         document.contains("master");
}

/// The index of "task": a number, a number as a string, or nothing for a job of one task.
std::optional<int64_t> read_index(const Json& task, const std::string& job) {
  const auto index = task.find("index");
  if (index == task.end()) return has_one_task(job) ? std::optional<int64_t>(0) : std::nullopt;
  if (index->is_string()) return parse_number<int64_t>(index->get<std::string>());
  return index->is_number_integer() ? std::optional<int64_t>(index->get<int64_t>()) : std::nullopt;
}

/// Job and index of "task", not yet compared with the cluster. Each access is checked: this library throws on a missing
/// key or another type.
absl::StatusOr<std::pair<std::string, int64_t>> read_task(const Json& task) {
  const bool has_type = task.is_object() && task.contains("type") && task["type"].is_string();
  std::string job = has_type ? task["type"].get<std::string>() : "";
  const std::optional<int64_t> index = has_type ? read_index(task, job) : std::nullopt;
  if (!index) return invalid("TF_CONFIG", "\"task\" must be {\"type\": \"worker\", \"index\": 0}");
  return std::pair(std::move(job), *index);
}

}  // namespace

absl::StatusOr<HostPort> parse_host_port(std::string_view whole) {
  std::string_view text = whole;
  const auto bad = [&](std::string_view why) {
    return absl::InvalidArgumentError(fmt::format("'{}' is not an address (host:port): {}", whole, why));
  };
  HostPort address;
  std::string_view port;
  std::string_view mistake;
  if (text.starts_with('[')) {
    text.remove_prefix(1);
    const size_t end = text.find(']');
    if (end == std::string_view::npos) return bad("missing ']'");
    address.host = text.substr(0, end);
    std::string_view rest = text.substr(end + 1);
    if (!rest.empty() && rest[0] != ':') return bad("expected ':' after ']'");
    // A host without a port keeps the default port.
    port = rest.empty() ? rest : rest.substr(1);
    if (!rest.empty() && port.empty()) return bad("no port after ':'");
    // A link-local address has the name of an interface behind a percent sign.
    if (!is_ip_address(address.host.substr(0, address.host.find('%')), AF_INET6))
      mistake = "brackets enclose an IPv6 address, such as [fd00::1]";
  } else {
    const size_t colon = text.find(':');
    if (text.find(',') != std::string_view::npos) return bad("one address is needed, not a list");
    // Without brackets the last colon of an IPv6 address would be taken for the one before a port.
    if (colon != std::string_view::npos && text.find(':', colon + 1) != std::string_view::npos) {
      return bad("IPv6 addresses need brackets: [::1]:2222");
    }
    address.host = text.substr(0, colon);
    if (colon != std::string_view::npos) {
      port = text.substr(colon + 1);
      if (port.empty()) return bad("no port after ':'");
    }
    mistake = mistake_in_host(address.host);
  }
  if (address.host.empty()) return bad("no host");
  if (!mistake.empty()) return bad(mistake);
  if (!port.empty()) {
    const std::optional<uint16_t> number = parse_number<uint16_t>(port);
    if (!number) return bad("the port must be a number up to 65535");
    address.port = *number;
  }
  return address;
}

std::string to_string(const HostPort& address) {
  if (address.host.find(':') != std::string::npos) return fmt::format("[{}]:{}", address.host, address.port);
  return fmt::format("{}:{}", address.host, address.port);
}

absl::StatusOr<std::vector<std::string>> parse_host_list(std::string_view list) {
  std::vector<std::string> hosts = split_list(list);
  if (hosts.empty())
    return absl::InvalidArgumentError(fmt::format("'{}' names no address (a list as in host:port,host:port)", list));
  for (std::string& host : hosts) {
    GRADRAIL_ASSIGN_OR_RETURN(const HostPort address, parse_host_port(host));
    host = to_string(address);
  }
  return hosts;
}

absl::StatusOr<std::vector<std::string>> parse_aggregators(std::string_view list) {
  std::vector<std::string> hosts = split_list(list);
  if (!hosts.empty()) return check_aggregators(std::move(hosts));
  return absl::InvalidArgumentError(fmt::format("'{}' names no address (a list as in host:port,host:port)", list));
}

absl::StatusOr<std::vector<std::string>> check_aggregators(std::vector<std::string> hosts) {
  std::set<std::string> seen;
  for (std::string& host : hosts) {
    GRADRAIL_ASSIGN_OR_RETURN(const HostPort address, parse_host_port(host));
    // The default port is that of a ps.
    if (host.ends_with(']') || host.find(':') == std::string::npos)
      return absl::InvalidArgumentError(
          fmt::format("{} has no port: name the port that the aggregator prints, as in host:port", host));
    host = to_string(address);
    if (address.port == 0)
      return absl::InvalidArgumentError(
          fmt::format("{}: no process listens at port 0: name the port that the aggregator prints", host));
    if (!seen.insert(host).second)
      return absl::InvalidArgumentError(fmt::format("{} is in the list twice: name each aggregator once", host));
  }
  return hosts;
}

absl::StatusOr<ClusterSpec> parse_cluster(std::string_view json, std::string_view source) {
  GRADRAIL_ASSIGN_OR_RETURN(const Json document, parse_object(json, source));
  // TF_CONFIG has the jobs inside "cluster", a cluster file at the top.
  return from_jobs(document.contains("cluster") ? document["cluster"] : document, source);
}

absl::StatusOr<ClusterSpec> read_cluster_file(const std::string& path) {
  const absl::StatusOr<std::string> text = read_file(path, kMaxClusterFileBytes, FileKind::any);
  if (!text.ok())
    return absl::InvalidArgumentError(fmt::format("{} (cluster specification)", message_of(text.status())));
  if (text->empty()) return invalid(path, "is empty (cluster specification)");
  return parse_cluster(*text, path);
}

absl::StatusOr<ClusterSpec> cluster_from_hosts(std::string_view ps_hosts, std::string_view worker_hosts,
                                               std::string_view source) {
  ClusterSpec cluster;
  cluster.ps = split_list(ps_hosts);
  cluster.workers = split_list(worker_hosts);
  return checked(std::move(cluster), source);
}

absl::StatusOr<TfConfig> parse_tf_config(std::string_view json) {
  GRADRAIL_ASSIGN_OR_RETURN(const Json document, parse_object(json, "TF_CONFIG"));
  TfConfig config;
  // Without jobs TensorFlow trains in one process, also if there is a task.
  if (document.contains("cluster") && document["cluster"] != Json::object()) {
    GRADRAIL_ASSIGN_OR_RETURN(config.cluster, from_jobs(document["cluster"], "TF_CONFIG"));
  } else if (!document.contains("cluster") && has_jobs(document)) {
    // The content of a cluster file.
    GRADRAIL_ASSIGN_OR_RETURN(config.cluster, from_jobs(document, "TF_CONFIG"));
  }
  if (!document.contains("task")) return config;
  GRADRAIL_ASSIGN_OR_RETURN(const auto task, read_task(document["task"]));
  const auto& [job, index] = task;
  // TensorFlow starts an evaluator beside the cluster that it evaluates.
  if (job == "evaluator") {
    config.task = TaskId{.job = job};
    return config;
  }
  if (!config.cluster.has_value() && (job == "worker" || job == "chief" || job == "master") && index == 0)
    return config;  // the only task of its run
  if (!config.cluster.has_value())
    return invalid("TF_CONFIG", fmt::format("task {} {} needs \"cluster\" with the addresses of the ps and the workers",
                                            job, index));
  absl::StatusOr<TaskId> id = resolve_task(*config.cluster, job, index);
  if (!id.ok()) return invalid("TF_CONFIG", message_of(id.status()));
  config.task = *std::move(id);
  return config;
}

bool has_one_task(std::string_view job) { return job == "chief" || job == "master" || job == "evaluator"; }

absl::StatusOr<TaskId> resolve_task(const ClusterSpec& cluster, std::string_view job, int64_t index) {
  const auto bad = [&](int64_t count) {
    return absl::InvalidArgumentError(
        fmt::format("task_index {}: job '{}' has tasks 0 to {} in the cluster specification", index, job, count - 1));
  };
  if (job == "ps") {
    // A ps cannot come later: the parameters are cut over all of them at the begin.
    if (index < 0 || index >= static_cast<int64_t>(cluster.ps.size()))
      return bad(static_cast<int64_t>(cluster.ps.size()));
    return TaskId{"ps", static_cast<uint32_t>(index)};
  }
  // TensorFlow 1 has the name master for the chief.
  if ((job == "chief" || job == "master") && cluster.chief_job) {
    // A cluster has one chief.
    if (index != 0) return bad(1);
    return TaskId{"worker", 0};
  }
  if (job == "worker") {
    // The user counts workers without the chief, the program with it.
    const int64_t moved_up = cluster.chief_job ? 1 : 0;
    // An index beyond the list is a late worker: a cluster may grow during the run.
    if (index < 0 || index >= kMaxWorkers - moved_up) {
      return absl::InvalidArgumentError(fmt::format(
          "task_index {}: job 'worker' has tasks 0 to {} in the cluster specification, and late workers up to {}",
          index, static_cast<int64_t>(cluster.workers.size()) - moved_up - 1, kMaxWorkers - moved_up - 1));
    }
    const auto moved = static_cast<uint32_t>(index + moved_up);
    if (moved < cluster.workers.size() && cluster.workers[moved] == kUnknownAddress)
      return absl::InvalidArgumentError(
          fmt::format("task_index {}: the cluster specification leaves out this task of job 'worker'", index));
    return TaskId{"worker", moved};
  }
  return absl::InvalidArgumentError(
      fmt::format("job_name '{}': no such job in the cluster specification (there are: ps, worker{})", job,
                  cluster.chief_job ? ", chief" : ""));
}

}  // namespace gradrail::ps
