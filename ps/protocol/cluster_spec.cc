#include "gradrail/cluster.h"

#include <sys/socket.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "base/net_address.h"
#include "base/parse_number.h"
#include "base/read_file.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "nlohmann/json.hpp"

namespace gradrail {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxClusterFileBytes = size_t{16} << 20;  // 1100 tasks take 0.1 MB
constexpr int64_t kMaxSparsePs = 64;                       // the limit of --ps

absl::Status invalid(std::string_view source, std::string_view what) {
  return absl::InvalidArgumentError(fmt::format("{}: {}", source, what));
}

using Keys = absl::Span<const std::string_view>;

constexpr std::string_view kJobs[] = {"ps", "worker", "chief"};
constexpr std::string_view kTopKeys[] = {"cluster", "sparseCluster", "task"};
constexpr std::string_view kTopKeysOrJobs[] = {"cluster", "sparseCluster", "task", "ps", "worker", "chief"};
constexpr std::string_view kTaskKeys[] = {"type", "index"};
// TensorFlow and the platforms that start it set these too. They have no effect on a run of this program.
constexpr std::string_view kOtherTopKeys[] = {
    "environment", "rpc_layer", "session_master", "eval_session_master", "service", "model_dir", "job"};
constexpr std::string_view kOtherTaskKeys[] = {"trial", "cloud"};
constexpr std::string_view kOtherJobs[] = {"master", "evaluator"};

bool contains(Keys keys, std::string_view key) { return std::find(keys.begin(), keys.end(), key) != keys.end(); }

/// Letters and digits in lower case: "sparse_cluster" and "SparseCluster" are then equal.
std::string plain(std::string_view key) {
  std::string letters;
  for (const unsigned char c : key) {
    if (std::isalnum(c) != 0) letters += static_cast<char>(std::tolower(c));
  }
  return letters;
}

/// The known key that `key` resembles; "" for none.
std::string_view meant_key(std::string_view key, Keys known) {
  const std::string ours = plain(key);
  const auto is_part = [](const std::string& part, const std::string& whole) {
    return part.size() > 2 && whole.find(part) != std::string::npos;
  };
  for (const std::string_view candidate : known)
    if (plain(candidate) == ours) return candidate;
  for (const std::string_view candidate : known)
    if (is_part(plain(candidate), ours) || is_part(ours, plain(candidate))) return candidate;
  return "";
}

/// Error of a wrong key; `what` is the word before the key. Without this error a description with a wrong key counts as
/// an empty one.
absl::Status unknown_key(std::string_view what, std::string_view key, Keys known, std::string_view source) {
  const std::string_view meant = meant_key(key, known);
  return invalid(source,
                 fmt::format("unknown {} '{}'{} (there are: {})", what, escaped(key),
                             meant.empty() ? "" : fmt::format(": do you mean '{}'?", meant), fmt::join(known, ", ")));
}

absl::Status check_keys(const Json& object, std::string_view what, Keys known, Keys others, std::string_view source) {
  for (const auto& [key, value] : object.items()) {
    if (!contains(known, key) && !contains(others, key)) return unknown_key(what, key, known, source);
  }
  return absl::OkStatus();
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
    // The check precedes the growth of the list: the index alone must not decide how much memory is used.
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
    // Each address has one spelling, so that duplicates are found.
    task = to_string(*address);
    if (!seen.insert(task).second) return invalid(source, fmt::format("address {} is given to two tasks", task));
  }
  return absl::OkStatus();
}

absl::StatusOr<ClusterSpec> checked(ClusterSpec cluster, std::string_view source) {
  if (cluster.ps.empty()) return invalid(source, "job 'ps' has no task (at least one parameter server is needed)");
  // A ps of a sparse description may have no worker in it. Each run has the chief, and its ps waits for it.
  if (cluster.workers.empty() && cluster.sparse) cluster.workers.push_back(kUnknownAddress);
  if (cluster.workers.empty()) return invalid(source, "job 'worker' has no task (at least one worker is needed)");
  // Each shard keeps an entry for every worker index.
  if (cluster.workers.size() > kMaxWorkers) return invalid(source, fmt::format("more than {} workers", kMaxWorkers));
  const auto unknown = [](const std::string& task) { return task == kUnknownAddress; };
  const auto absent = std::find_if(cluster.ps.begin(), cluster.ps.end(), unknown);
  if (absent != cluster.ps.end())
    return invalid(source, fmt::format("job 'ps': task {} is missing (only the workers may have gaps)",
                                       absent - cluster.ps.begin()));
  cluster.sparse = cluster.sparse || std::any_of(cluster.workers.begin(), cluster.workers.end(), unknown);
  std::set<std::string> seen;
  GRADRAIL_RETURN_IF_ERROR(normalise(cluster.ps, "ps", source, seen));
  GRADRAIL_RETURN_IF_ERROR(normalise(cluster.workers, "worker", source, seen));
  return cluster;
}

std::vector<std::string> split_list(std::string_view list) {
  // Debian builds Abseil with its own string_view, which does not convert from the standard one.
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
  // Such characters are those of a URL or of wrong quotes in a script.
  const auto is_wrong = [](unsigned char c) {
    return c <= ' ' || c == 0x7f || std::string_view("/\\\"'").find(static_cast<char>(c)) != std::string_view::npos;
  };
  if (std::any_of(host.begin(), host.end(), is_wrong)) return "a host name has no such characters";
  if (host.starts_with('-')) return "a host name begins with a letter or a digit";
  if (is_number(std::string_view(host).substr(host.rfind('.') + 1)) && !is_ip_address(host, AF_INET))
    return "a host that ends in a number must be an IPv4 address, such as 10.0.0.1";
  return "";
}

absl::StatusOr<ClusterSpec> from_jobs(const Json& jobs, bool is_sparse, std::string_view source) {
  if (!jobs.is_object())
    return invalid(source, fmt::format("\"{}\" must be an object of jobs", is_sparse ? "sparseCluster" : "cluster"));
  GRADRAIL_RETURN_IF_ERROR(check_keys(jobs, "job", kJobs, kOtherJobs, source));
  // The jobs have no order: the choice of one of them would be silent.
  if (jobs.contains("chief") && jobs.contains("master"))
    return invalid(source, "jobs 'chief' and 'master' are two names of one job: keep one of them");
  ClusterSpec cluster{.sparse = is_sparse};
  std::vector<std::string> chief;
  for (const auto& [name, job] : jobs.items()) {
    GRADRAIL_ASSIGN_OR_RETURN(std::vector<std::string> tasks, read_job(job, name, source));
    if (name == "ps") {
      cluster.ps = std::move(tasks);
    } else if (name == "worker") {
      cluster.workers = std::move(tasks);
    } else if (name == "chief" || name == "master") {
      chief = std::move(tasks);
    }  // TensorFlow's evaluator takes no part in training and is ignored
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
  if (text.empty()) return invalid(source, "is empty: give a description of the cluster, or none at all");
  // The parser would keep the last value of a key that occurs twice.
  std::vector<std::set<std::string>> open_objects;
  std::string repeated;
  const auto look = [&](int, Json::parse_event_t event, const Json& value) {
    if (event == Json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == Json::parse_event_t::object_end) open_objects.pop_back();
    if (event == Json::parse_event_t::key && !open_objects.back().insert(value.get<std::string>()).second)
      repeated = value.get<std::string>();
    return true;
  };
  try {
    Json document = Json::parse(text, look);
    if (!repeated.empty())
      return invalid(source, fmt::format("key '{}' occurs twice in one object", escaped(repeated)));
    if (!document.is_object()) return invalid(source, "must be a JSON object with the jobs \"ps\" and \"worker\"");
    return document;
  } catch (const Json::exception& error) {  // its text names the byte; no exception leaves this folder
    return invalid(source, fmt::format("not JSON: {}", error.what()));
  }
}

/// The cluster of a document with the jobs at the top, as a cluster file, or with the keys of TF_CONFIG. None: it has
/// no job.
absl::StatusOr<std::optional<ClusterSpec>> cluster_of(const Json& document, std::string_view source) {
  const bool is_sparse = document.contains("sparseCluster");
  const bool has_jobs_below = is_sparse || document.contains("cluster");
  const auto is_here = [&](std::string_view job) { return document.contains(job); };
  if (!has_jobs_below && (std::any_of(std::begin(kJobs), std::end(kJobs), is_here) ||
                          std::any_of(std::begin(kOtherJobs), std::end(kOtherJobs), is_here))) {
    return from_jobs(document, false, source);
  }
  GRADRAIL_RETURN_IF_ERROR(
      check_keys(document, "key", has_jobs_below ? Keys(kTopKeys) : Keys(kTopKeysOrJobs), kOtherTopKeys, source));
  if (is_sparse && document.contains("cluster"))
    return invalid(source, "\"cluster\" and \"sparseCluster\" are two descriptions of one cluster: keep one of them");
  const auto jobs = document.find(is_sparse ? "sparseCluster" : "cluster");
  // TensorFlow without jobs trains in one process, also if there is a task.
  if (jobs == document.end() || (!is_sparse && *jobs == Json::object())) return std::nullopt;
  return from_jobs(*jobs, is_sparse, source);
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
  if (task.is_object())
    GRADRAIL_RETURN_IF_ERROR(check_keys(task, "key of \"task\"", kTaskKeys, kOtherTaskKeys, "TF_CONFIG"));
  const bool has_type = task.is_object() && task.contains("type") && task["type"].is_string();
  std::string job = has_type ? task["type"].get<std::string>() : "";
  const std::optional<int64_t> index = has_type ? read_index(task, job) : std::nullopt;
  if (!index) return invalid("TF_CONFIG", "\"task\" must be {\"type\": \"worker\", \"index\": 0}");
  return std::pair(std::move(job), *index);
}

/// The description of one task may have the address of this task alone in its job, as in the dynamic form of Kubeflow.
absl::Status check_sparse_task(ClusterSpec& cluster, std::string_view job, int64_t index) {
  const auto missing = [&] {
    return invalid("TF_CONFIG",
                   fmt::format("\"sparseCluster\" has no address of task {} {}: add it to job '{}'", job, index, job));
  };
  if ((job == "chief" || job == "master") && !cluster.chief_job) return missing();
  if (job == "worker" && index >= static_cast<int64_t>(cluster.workers.size()) - (cluster.chief_job ? 1 : 0))
    return missing();
  // A list of one address is then that of this task. The others of its job have no address here.
  if (job == "ps" && cluster.ps.size() == 1 && index > 0 && index < kMaxSparsePs) {
    cluster.ps.insert(cluster.ps.begin(), static_cast<size_t>(index), kUnknownAddress);
  }
  return absl::OkStatus();
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
  if (const size_t scheme = text.find("://"); scheme != std::string_view::npos)
    return bad(fmt::format("leave out {}", text.substr(0, scheme + 3)));
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
    // The last colon of an IPv6 address without brackets would be taken for the one before a port.
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

absl::StatusOr<ClusterSpec> parse_cluster(std::string_view json, std::string_view source) {
  GRADRAIL_ASSIGN_OR_RETURN(const Json document, parse_object(json, source));
  GRADRAIL_ASSIGN_OR_RETURN(std::optional<ClusterSpec> cluster, cluster_of(document, source));
  return cluster.has_value() ? *std::move(cluster) : checked({}, source);
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
  GRADRAIL_ASSIGN_OR_RETURN(config.cluster, cluster_of(document, "TF_CONFIG"));
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
  if (document.contains("sparseCluster")) GRADRAIL_RETURN_IF_ERROR(check_sparse_task(*config.cluster, job, index));
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
    // A ps cannot join later: the parameters are cut over all of them at the begin.
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

}  // namespace gradrail
