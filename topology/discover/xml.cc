#include "topology/discover/xml.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <sstream>
#include <string_view>

#include "base/file_descriptor.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "fmt/format.h"
#include "topology/discover/discover.h"
#include "topology/discover/hwloc.h"
#include "topology/discover/machine_json.h"

namespace gradrail::topology {
namespace {

constexpr const char* kRemedy = "save it again with lstopo FILE.xml";
constexpr const char* kRemedyOfHwloc3 = "hwloc 3 has saved it: save it again with lstopo --export-xml-flags 2 FILE.xml";
constexpr Duration kImportTimeout = std::chrono::seconds(30);  // hwloc needs 1 s for 16384 cpus
constexpr size_t kMaxDescriptionBytes = size_t{64} << 20;      // 100 bytes for each core

/// A file of some bytes can claim sets of 2^32 cpus. Sanitizers reserve more address space than this.
void limit_resources() {
  const rlimit no_core{.rlim_cur = 0, .rlim_max = 0};
  setrlimit(RLIMIT_CORE, &no_core);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  constexpr rlim_t kMaxMemoryBytes = rlim_t{4} << 30;
  const rlimit memory{.rlim_cur = kMaxMemoryBytes, .rlim_max = kMaxMemoryBytes};
  setrlimit(RLIMIT_AS, &memory);
#endif
}

/// hwloc prints the cause of some refusals to stderr and returns only -1.
class HwlocMessages {
 public:
  HwlocMessages() : file_(memfd_create("hwloc", MFD_CLOEXEC)) {
    setenv("HWLOC_XML_VERBOSE", "1", 1);
    dup2(file_.get(), STDERR_FILENO);
  }

  std::string cause() const {
    constexpr size_t kMaxBytes = 4096;
    lseek(file_.get(), 0, SEEK_SET);
    std::istringstream lines(read_up_to(file_.get(), kMaxBytes).value_or(""));
    for (std::string line; std::getline(lines, line);) {
      if (line.ends_with("without DTD")) continue;                                          // a note, not the cause
      return printable((line.starts_with(':') ? "line " + line.substr(1) : line).c_str());  // ":5: parser error"
    }
    return "it is damaged, or no XML of hwloc";
  }

 private:
  const FileDescriptor file_;
};

/// Name of the root element; "": the text is no XML. Declarations, comments and the document type may precede it.
std::string root_element(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n", kByteOrderMark = "\xef\xbb\xbf";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  while (true) {
    text.remove_prefix(std::min(text.size(), text.find_first_not_of(kSpaces)));
    if (!text.starts_with("<")) return "";
    if (text[std::min<size_t>(1, text.size() - 1)] != '?' && !text.starts_with("<!")) break;
    const std::string_view end = text.starts_with("<?") ? "?>" : text.starts_with("<!--") ? "-->" : ">";
    const size_t at = text.find(end);
    if (at == text.npos) return "";
    text.remove_prefix(at + end.size());
  }
  constexpr size_t kLongestName = 40;
  text.remove_prefix(1);
  return printable(std::string(text.substr(0, std::min(text.find_first_of(" \t\r\n/>"), kLongestName))).c_str());
}

/// The import of hwloc reports a file of another kind as a damaged one.
absl::Status check_kind(const std::string& text) {
  const auto is_no = [](const std::string& what) {
    return absl::InvalidArgumentError(fmt::format("{}, and no XML of hwloc ({})", what, kRemedy));
  };
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == text.npos) return is_no("the file is empty");
  const std::string root = root_element(text);
  if (root == "topology" || root == "root") return absl::OkStatus();  // "root": hwloc before 1.0
  if (root == "system" || root == "graphs") {
    return is_no(
        fmt::format("it is a {} of NCCL or RCCL (element <{}>)", root == "system" ? "topology" : "graph", root));
  }
  if (root == "topologydiff") return is_no("it is a difference of two topologies (lstopo saves a whole one)");
  if (!root.empty()) return is_no(fmt::format("its root element is <{}>, that of hwloc is <topology>", root));
  if (text[first] == '{' || text[first] == '[') return is_no("it looks like JSON");
  if (from_synthetic(text).ok()) {
    return absl::InvalidArgumentError(
        "it has a synthetic description of hwloc, and no XML; give the description in the place of the file: "
        "\"$(cat FILE)\"");
  }
  return is_no("it is no XML");
}

/// Runs in the child process.
absl::StatusOr<std::string> describe(const std::string& text) {
  limit_resources();
  const HwlocMessages messages;
  GRADRAIL_ASSIGN_OR_RETURN(Topology topology, new_topology());
  if (hwloc_topology_set_xmlbuffer(topology.get(), text.c_str(), static_cast<int>(text.size()) + 1) != 0 ||
      hwloc_topology_load(topology.get()) != 0) {
    const std::string cause = messages.cause();
    const bool is_newer = cause.find("cannot import XML version 3") != std::string::npos;
    return absl::InvalidArgumentError(
        fmt::format("hwloc cannot make a machine of it: {} ({})", cause, is_newer ? kRemedyOfHwloc3 : kRemedy));
  }
  hwloc_topology_check(topology.get());  // aborts if objects contradict each other
  Machine machine;
  GRADRAIL_RETURN_IF_ERROR(read_machine(topology.get(), machine));
  return write_machine(machine);
}

}  // namespace

absl::StatusOr<Machine> import_xml(const std::string& text) {
  GRADRAIL_RETURN_IF_ERROR(check_kind(text));
  if (text.size() >= INT_MAX) return absl::InvalidArgumentError("it is longer than hwloc can read");
  const absl::StatusOr<std::string> description = run_in_subprocess(
      [&] { return describe(text); }, {.timeout = kImportTimeout, .max_output_bytes = kMaxDescriptionBytes});
  if (!description.ok() && description.status().code() != absl::StatusCode::kUnavailable) return description.status();
  if (!description.ok()) {
    return absl::InvalidArgumentError(fmt::format("its objects contradict each other, and hwloc crashed: {} ({})",
                                                  message_of(description.status()), kRemedy));
  }
  absl::StatusOr<Machine> machine = parse_machine(*description);
  if (machine.ok()) return machine;
  return absl::InvalidArgumentError(fmt::format("{} ({})", message_of(machine.status()), kRemedy));
}

}  // namespace gradrail::topology
