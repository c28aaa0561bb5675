#include "bench/driver/jobs.h"

#include <unistd.h>

#include "base/file_descriptor.h"
#include "bench/cluster/member.h"
#include "bench/driver/subprocess.h"
#include "bench/driver/transports.h"
#include "bench/report/versions.h"
#include "bench/suites/device_name.h"
#include "nlohmann/json.hpp"

namespace gradrail::bench {
namespace {

constexpr size_t kMaxJobBytes = size_t{64} << 20;

nlohmann::json run_job(const nlohmann::json& job) {
  const std::string name = job.at("do");
  if (name == "load libraries") return load_libraries();
  if (name == "open transport") return open_transport(job);
  if (name == "open device") return open_device(job);
  return run_task(job);
}

}  // namespace

void run_job_of_parent(int output) {
  run_child(output, [] { return run_job(nlohmann::json::parse(read_up_to(STDIN_FILENO, kMaxJobBytes).value_or(""))); });
}

}  // namespace gradrail::bench
