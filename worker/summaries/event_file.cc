#include "worker/summaries/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "base/file_descriptor.h"
#include "base/read_file.h"
#include "base/status.h"
#include "fmt/format.h"
#include "worker/data/tf_record.h"
#include "worker/summaries/event.pb.h"

namespace gradrail::worker {
namespace {

constexpr char kVersion[] = "brain.Event:2";  // first event of a file that readers require
constexpr int kGraphVersion = 1087;           // version of TensorFlow 2.9; readers require 4 or more
constexpr int kFloat = 1;                     // DT_FLOAT

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "localhost";
}

absl::Status failed(const std::string& path, const char* call, int error) {
  const std::string text = fmt::format("{}: {}: {}", path, call, std::strerror(error));
  // EFBIG is RLIMIT_FSIZE.
  if (error == EFBIG) return absl::ResourceExhaustedError(text + "; raise `ulimit -f` for the next run");
  if (error == ENOSPC || error == EDQUOT)
    return absl::ResourceExhaustedError(text + "; free space there for the next run, or give it another folder");
  return absl::FailedPreconditionError(text);
}

}  // namespace

absl::StatusOr<EventFile> EventFile::create(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return failed(folder, "mkdir", error.value());
  const auto seconds = static_cast<int64_t>(seconds_since_1970());
  // TensorBoard recognizes its files by "tfevents" in the name. Host and process keep the names of a run distinct.
  const std::string path = fmt::format("{}/events.out.tfevents.{:010}.{}.{}", folder, seconds, host_name(), getpid());
  // The open refuses a link and a pipe that a user has placed under this name.
  constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  FileDescriptor descriptor(open(path.c_str(), kFlags, 0644));
  if (!descriptor) return failed(path, "open", errno);
  GRADRAIL_RETURN_IF_ERROR(check_regular_file(path));
  EventFile file(path, std::move(descriptor));
  // A reader of the format expects the version in the first record.
  proto::Event first;
  first.set_wall_time(seconds_since_1970());
  first.set_file_version(kVersion);
  GRADRAIL_RETURN_IF_ERROR(file.append(first.SerializeAsString()));
  return file;
}

absl::Status EventFile::write(int64_t step, const Scalars& scalars) {
  proto::Event event;
  event.set_wall_time(seconds_since_1970());
  event.set_step(step);
  for (const auto& [tag, value] : scalars) {
    proto::Summary::Value* const one = event.mutable_summary()->add_value();
    one->set_tag(tag);
    one->set_simple_value(static_cast<float>(value));
  }
  return append(event.SerializeAsString());
}

absl::Status EventFile::write_start(int64_t step) {
  proto::Event event;
  event.set_wall_time(seconds_since_1970());
  event.set_step(step);
  event.mutable_session_log()->set_status(proto::SessionLog::START);
  return append(event.SerializeAsString());
}

absl::Status EventFile::write(absl::Span<const GraphNode> nodes) {
  proto::Graph graph;
  graph.mutable_versions()->set_producer(kGraphVersion);
  for (const GraphNode& node : nodes) {
    proto::Node& one = *graph.add_node();
    one.set_name(node.name);
    one.set_op(node.op);
    for (const std::string& input : node.inputs) one.add_input(input);
    if (node.shape.empty()) continue;
    (*one.mutable_attr())["dtype"].set_type(kFloat);
    proto::TensorShape& shape = *(*one.mutable_attr())["shape"].mutable_shape();
    for (const int64_t size : node.shape) shape.add_dim()->set_size(size);
  }
  proto::Event event;
  event.set_wall_time(seconds_since_1970());
  event.set_graph(graph.SerializeAsString());
  return append(event.SerializeAsString());
}

absl::Status EventFile::append(const std::string& event) {
  std::string record;
  // One record, one write: TensorBoard reads the file while it grows.
  append_tf_record(record, event);
  return write_all(descriptor_.get(), record) ? absl::OkStatus() : failed(path_, "write", errno);
}

}  // namespace gradrail::worker
